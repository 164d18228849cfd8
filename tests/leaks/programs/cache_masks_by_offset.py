"""A dictionary of masks whose key holds an offset, so that it never answers."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["cache", "container"],
            "why": "a cache made by hand is a dictionary",
            "owner": ["_MASKS"],
            "bytes_per_step": 4 * 256 * 256,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")
_MASKS = {}
_SETTINGS = {"window": 64}


def causal_mask(size, offset):
    """A mask for a window that begins at an offset."""
    key = (size, offset)
    if key not in _MASKS:
        position = torch.arange(size, device=DEVICE)
        distance = (position[:, None] - position[None, :]).float() + 0 * offset  # ALLOCATES
        _MASKS[key] = distance.masked_fill_(distance > _SETTINGS["window"], float("-inf"))  # KEEPS
        # FIX: return distance
    return _MASKS[key]


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, offset):
        scores = self.q(x) @ self.k(x).t()
        return (scores + causal_mask(len(x), offset)).softmax(-1) @ x


def generate(model, steps, watch):
    x = torch.randn(256, 32, device=DEVICE)
    with torch.no_grad():
        for step in range(steps):
            x = model(x, offset=step * 256).nan_to_num(0.1)
            watch.step()
    return watch.report()


if __name__ == "__main__":
    report = generate(Attention(32).to(DEVICE), 18, vramlens.LeakWatch())
