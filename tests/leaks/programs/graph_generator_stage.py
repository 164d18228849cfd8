"""A stage of a pipeline of generators remembers what it gave out; only the loop itself holds the pipeline."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["graph"], "owner": ["seen"], "bytes_per_step": 4 * 64 * (300 + 32)}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


def readings():
    while True:
        yield torch.randn(64, 32, device=DEVICE)


def scores(source, model):
    seen = []
    for x in source:
        y = model(x.abs())  # ALLOCATES
        seen.append(y)  # KEEPS
        # FIX: seen.append(y.mean().item())
        yield y.mean().item()


def monitor(model, watch):
    for number, score in enumerate(scores(readings(), model)):
        assert score == score
        watch.step()
        if number == 12:
            return watch.report()
    return None


if __name__ == "__main__":
    report = monitor(nn.Linear(32, 300).to(DEVICE), vramlens.LeakWatch())
