"""lru_cache(maxsize=64) that has seen 20 keys: it will stop, and says so: https://github.com/CVCUDA/CV-CUDA/issues/162"""

import functools
import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "bounded by lru_cache(maxsize=64)", "settled": False}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


@functools.lru_cache(maxsize=64)
def positions(length, width):
    """Sinusoidal positions of a length."""
    angle = torch.arange(length, device=DEVICE)[:, None] / 10_000 ** (torch.arange(0, width, 2, device=DEVICE) / width)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(128, 128)

    def forward(self, x):
        return self.layer(x + positions(x.shape[1], x.shape[2]))


@torch.no_grad()
def read(model, watch):
    norms = []
    for step in range(20):
        norms.append(float(model(torch.zeros(2, 400 + step, 128, device=DEVICE)).norm()))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = read(Reader().to(DEVICE), vramlens.LeakWatch())
