"""Adversarial inputs are kept, each with the gradient that made it, which nobody asks for again."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["container"], "owner": ["inputs"], "bytes_per_step": 2 * 4 * 60 * 200}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Attack:
    def __init__(self, model):
        self.model = model
        self.inputs = []

    def step(self, x):
        x = x.clone().requires_grad_()  # ALLOCATES
        self.model(x).sum().backward()  # ALLOCATES
        self.inputs.append(x)  # KEEPS
        # FIX: self.inputs.append(x.mean().item())


def main():
    attack = Attack(nn.Sequential(nn.Linear(200, 32), nn.ReLU(), nn.Linear(32, 1)).to(DEVICE))
    watch = vramlens.LeakWatch()
    for _ in range(12):
        attack.step(torch.randn(60, 200, device=DEVICE))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
