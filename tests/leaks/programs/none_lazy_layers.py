"""Layers are built when they are first needed: one more for each of the first eight steps."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "eight layers, all built by step 8"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Growing(nn.Module):
    """Depth as the curriculum says."""

    def __init__(self, width, deepest):
        super().__init__()
        self.width, self.deepest = width, deepest
        self.layers = nn.ModuleList()

    def forward(self, x, depth):
        while len(self.layers) < min(depth, self.deepest):
            self.layers.append(nn.Linear(self.width, self.width, device=x.device))
        for layer in self.layers[: min(depth, self.deepest)]:
            x = torch.relu(layer(x))
        return x


def train(steps, watch):
    model = Growing(200, 8)
    losses = []
    for step in range(steps):
        x = torch.randn(64, 200, device=DEVICE)
        loss = (model(x, step + 1) - x).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
        model.zero_grad()
        losses.append(loss.item())
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = train(26, vramlens.LeakWatch())
