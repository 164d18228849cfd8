"""A memo keyed by tensors: every batch is a new key, whatever it holds."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["cache", "container"],
            "why": "a cache made by hand is a dictionary",
            "owner": ["memo"],
            "bytes_per_step": 4 * 200 * (64 + 500),
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Memoized:
    """Remembers what a function made of each argument."""

    def __init__(self, function):
        self.function = function
        self.memo = {}
        self.misses = 0

    def __call__(self, x):
        if x not in self.memo:
            self.misses += 1
            self.memo[x] = self.function(x)  # KEEPS
            # FIX: self.memo = {x: self.function(x)}
        return self.memo[x]


encoder = nn.Sequential(nn.Linear(64, 500), nn.Hardtanh()).to(DEVICE).requires_grad_(False)


@Memoized
def encode(x):
    return encoder(x)


def run(watch):
    head = nn.Linear(500, 2).to(DEVICE)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(16):
        x = torch.randn(200, 64, device=DEVICE)  # ALLOCATES
        loss = head(encode(x)).pow(2).mean()  # ALLOCATES
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = run(vramlens.LeakWatch())
