"""Failures are kept as texts, with the number of the batch: https://github.com/pytorch/pytorch/issues/18853"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "strings, no exceptions"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Trainer:
    def __init__(self):
        self.model, self.failures = nn.Linear(200, 300).to(DEVICE), {}

    def step(self, number):
        out = self.model(torch.randn(128, 200, device=DEVICE))
        if number % 2:
            raise FloatingPointError(f"batch {number}: {out.shape}")
        return out.mean().item()

    def fit(self, steps, watch):
        means = []
        for number in range(steps):
            try:
                means.append(self.step(number))
            except FloatingPointError as error:
                self.failures[number] = f"{type(error).__name__}: {error}"
            watch.step()
        return watch.report()


if __name__ == "__main__":
    report = Trainer().fit(18, vramlens.LeakWatch())
