"""Masks by length: ten lengths there are, and all have been seen by step 12: https://github.com/ultralytics/ultralytics/issues/730"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "a cache of ten shapes, full at step 10"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Masks:
    def __init__(self):
        self.by_length = {}
        self.hits = 0

    def get(self, length):
        if length in self.by_length:
            self.hits += 1
        else:
            self.by_length[length] = torch.ones(length, length, device=DEVICE).tril()
        return self.by_length[length]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.masks, self.qk = Masks(), nn.Linear(32, 32)

    def forward(self, x):
        scores = self.qk(x) @ x.t()
        return scores.masked_fill(self.masks.get(len(x)) == 0, -1e9).softmax(-1) @ x


def main(watch):
    model = Attention().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(34):
        x = torch.randn(200 + 16 * (step * 7 % 10), 32, device=DEVICE)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main(vramlens.LeakWatch())
