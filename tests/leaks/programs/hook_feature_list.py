"""A forward hook stores every output of a layer, in a list that only the hook knows: https://github.com/meta-pytorch/opacus/issues/176"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["hook"], "owner": ["hook", "features"], "bytes_per_step": 4 * 200 * 384}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.relu(self.linear(self.norm(x)))  # ALLOCATES


def watch_layer(layer):
    """Counts what passes through a layer."""
    features = []
    counts = {"calls": 0}

    def hook(module, inputs, output):
        counts["calls"] += 1
        features.append(output.detach())  # KEEPS
        # FIX: features[:] = [output.detach()]

    layer.register_forward_hook(hook)
    return counts


def train():
    model = nn.Sequential(*[Block(384) for _ in range(3)]).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    counts = watch_layer(model[1])
    watch = vramlens.LeakWatch()
    for _ in range(16):
        x = torch.randn(200, 384, device=DEVICE)
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watch.step()
    return watch.report(), counts


if __name__ == "__main__":
    report, counts = train()
