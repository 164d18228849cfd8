"""A chat's prompt is longer at each turn, and so is the output of the last one: nothing of the turn before is in it."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "one output is kept, the last; its input grows", "settled": False}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


def chat(turns, watch):
    embedding = nn.Embedding(100, 64).to(DEVICE)
    hidden = None
    for turn in range(turns):
        tokens = torch.randint(0, 100, (64 * (turn + 1),), device=DEVICE)
        with torch.no_grad():
            hidden = embedding(tokens)
        watch.step()
    return watch.report(), hidden.shape


if __name__ == "__main__":
    report, _ = chat(18, vramlens.LeakWatch())
