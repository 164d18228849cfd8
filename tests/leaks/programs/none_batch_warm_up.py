"""The batch grows until step 8 and then stays; the last batch, output and gradients are always there: https://github.com/ultralytics/ultralytics/issues/730"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "larger batches, one at a time"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Schedule:
    def __init__(self, smallest, largest):
        self.smallest, self.largest = smallest, largest

    def __call__(self, step):
        return min(self.smallest + 64 * step, self.largest)


def train(steps, watch):
    model, size = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)).to(DEVICE), Schedule(64, 576)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = 0
    for step in range(steps):
        x = torch.randn(size(step), 128, device=DEVICE)
        out = model(x)
        loss = (out - x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        seen += len(x)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = train(26, vramlens.LeakWatch())
