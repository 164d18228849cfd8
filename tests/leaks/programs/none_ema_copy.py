"""A moving average of the weights: made once, updated in place; a new dictionary at every step."""

import copy
import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "one copy of the weights, replaced at each step"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class ModelEMA:
    def __init__(self, model, decay=0.99):
        self.ema = copy.deepcopy(model).eval()
        self.decay, self.updates = decay, 0
        self.averaged = {}

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        for old, new in zip(self.ema.parameters(), model.parameters(), strict=True):
            old.lerp_(new, 1 - self.decay)
        self.averaged = {name: value * 1.0 for name, value in self.ema.state_dict().items()}


def train():
    watch = vramlens.LeakWatch()
    model = nn.Sequential(nn.Linear(150, 400), nn.ReLU(), nn.Linear(400, 150)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    ema = None
    for step in range(18):
        x = torch.randn(64, 150, device=DEVICE)
        optimizer.zero_grad()
        (model(x) - x).pow(2).mean().backward()
        optimizer.step()
        if step == 2:
            ema = ModelEMA(model)
        if ema is not None:
            ema.update(model)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = train()
