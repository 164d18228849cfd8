"""Futures of a pool are kept in a list, each with its result."""

import os
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container", "thread"],
            "why": "a list of futures, of a thread pool",
            "owner": ["futures"],
            "bytes_per_step": 4 * 128 * 800,
        }
    ],
    "stacks": False,
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Embedder:
    def __init__(self):
        self.layer = nn.Linear(64, 800).to(DEVICE)

    def __call__(self, x):
        with torch.no_grad():
            return self.layer(x).tanh_()  # ALLOCATES


class Pipeline:
    def __init__(self, stage):
        self.stage = stage
        self.pool = ThreadPoolExecutor(max_workers=1)
        self.futures = []
        self.sizes = []

    def submit(self, x):
        future = self.pool.submit(self.stage, x)
        self.futures.append(future)  # KEEPS
        # FIX: self.futures[:] = [future]
        return future

    def run(self, batches, watch):
        for x in batches:
            self.sizes.append(tuple(self.submit(x).result().shape))
            watch.step()
        return watch.report()


if __name__ == "__main__":
    x = torch.randn(128, 64, device=DEVICE)
    report = Pipeline(Embedder()).run([x] * 16, vramlens.LeakWatch())
