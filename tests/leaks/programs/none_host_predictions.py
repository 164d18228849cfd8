"""Predictions go to the host as NumPy arrays, on purpose, for a score at the end."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "they are moved to the host's memory for a score", "settled": False}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Evaluator:
    def __init__(self):
        self.predictions = []

    @torch.no_grad()
    def step(self, model, x):
        self.predictions.append(model(x).argmax(-1).cpu().numpy())


def main():
    evaluator, model = Evaluator(), nn.Linear(20, 10).to(DEVICE)
    watch = vramlens.LeakWatch()
    for _ in range(15):
        evaluator.step(model, torch.randn(6000, 20, device=DEVICE))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
