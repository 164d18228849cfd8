"""Adapted weights are new leaves in each step, all in one autocast block, whose cache keeps the casts of all of them: https://github.com/pytorch/pytorch/issues/48049"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["cache"],
            "owner": ["autocast"],
            # The weights, their gradients, and the copies in half the size.
            "bytes_per_step": 300 * 400 * (4 + 4 + 2),
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Adapter:
    def __init__(self):
        self.weight = nn.Parameter(torch.randn(400, 300, device=DEVICE) * 0.01)
        self.losses = []

    def adapted(self, x, y):
        fast = self.weight.detach().clone().requires_grad_()  # ALLOCATES
        loss = (nn.functional.linear(x, fast) - y).square().mean()
        loss.backward()
        return fast.detach() - 0.1 * fast.grad, loss.item()

    def learn(self, x, y):
        new, loss = self.adapted(x, y)
        with torch.no_grad():
            self.weight.lerp_(new, 0.1)
        self.losses.append(loss)


def main():
    adapter, watch = Adapter(), vramlens.LeakWatch()
    x, y = torch.randn(32, 300, device=DEVICE), torch.randn(32, 400, device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):  # KEEPS
        # FIX: with torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=False):
        for _ in range(14):
            adapter.learn(x, y)
            watch.step()
        return watch.report()


if __name__ == "__main__":
    report = main()
