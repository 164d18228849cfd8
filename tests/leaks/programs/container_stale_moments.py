"""A layer's weight is made anew, and the optimizer keeps the moments of the old one under its parameter."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["container"], "owner": ["optimizer"], "bytes_per_step": 4 * (4 * 200 * 200 + 1)}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Pruner:
    def __init__(self):
        self.model = nn.Linear(200, 200, bias=False).to(DEVICE)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def train(self):
        loss = self.model(torch.randn(16, 200, device=DEVICE)).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()  # KEEPS

    def prune(self):
        weight = nn.Parameter(self.model.weight.detach() * 0.9)
        self.model.weight = weight
        self.optimizer.param_groups[0]["params"] = [weight]  # KEEPS
        # FIX: self.optimizer = torch.optim.Adam([weight])


def main():
    pruner = Pruner()
    watch = vramlens.LeakWatch()
    for _ in range(12):
        pruner.train()  # ALLOCATES
        pruner.prune()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
