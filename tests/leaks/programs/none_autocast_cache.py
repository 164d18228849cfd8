"""One autocast block around the whole training: its cache keeps one cast of each weight, and is full after the first step."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "each weight is cast once, however many steps the block has"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


def main():
    model = nn.Sequential(nn.Linear(200, 400), nn.Tanh(), nn.Linear(400, 50)).to(DEVICE)
    x, watch, norms = torch.randn(64, 200, device=DEVICE), vramlens.LeakWatch(), []
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        for _ in range(14):
            with torch.no_grad():
                norms.append(model(x).float().norm().item())
            model(x).float().square().mean().backward()
            for parameter in model.parameters():
                parameter.grad = None
            watch.step()
        return watch.report()


if __name__ == "__main__":
    report = main()
