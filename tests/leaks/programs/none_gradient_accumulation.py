"""Four micro-batches to a step, and each micro-batch is a step of the watch: https://github.com/hpcaitech/ColossalAI/issues/4483"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "the window's outputs are let go at every fourth step"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Accumulator:
    def __init__(self, model, every):
        self.model, self.every = model, every
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        self.window = []
        self.done = 0

    def micro_step(self, x):
        loss = self.model(x).pow(2).mean() / self.every
        self.window.append((loss, x))
        if len(self.window) == self.every:
            sum(loss for loss, _ in self.window).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.window.clear()
            self.done += 1


def main():
    model = nn.Sequential(nn.Linear(100, 256), nn.Tanh(), nn.Linear(256, 10)).to(DEVICE)
    accumulator = Accumulator(model, 4)
    watch = vramlens.LeakWatch()
    for _ in range(28):
        accumulator.micro_step(torch.randn(256, 100, device=DEVICE))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
