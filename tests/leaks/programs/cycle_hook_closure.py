"""A module made anew in each iteration, whose hook refers to it: https://github.com/pytorch/pytorch/issues/46386"""

import gc
import os
import weakref

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["cycle"], "owner": ["Adapter", "hook"], "bytes_per_step": 4 * (256 * 400 + 400)}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Adapter(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.down = nn.Linear(width, rank)  # ALLOCATES
        self.calls = 0
        owner = self
        # FIX: owner = weakref.proxy(self)

        def hook(module, inputs, output):
            owner.calls += 1

        self.down.register_forward_hook(hook)  # KEEPS

    def forward(self, x):
        return self.down(x)


def search(x, candidates, watch):
    scores = {}
    with torch.no_grad():
        for number in range(candidates):
            adapter = Adapter(256, 400).to(DEVICE)
            scores[f"adapter {number}"] = adapter(x).std().item()
            del adapter
            watch.step()
    return watch.report(), max(scores, key=scores.get), weakref


if __name__ == "__main__":
    gc.disable()
    report, best, _ = search(torch.randn(32, 256, device=DEVICE), 15, vramlens.LeakWatch())
