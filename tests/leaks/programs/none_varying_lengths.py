"""The last batch lives on until the next: its size wanders with the length, and sets records now and then: https://github.com/Lightning-AI/litgpt/issues/159"""

import os
import random

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "one batch at a time; the longest was at step 6"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Collator:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lengths = [40, 55, 31, 80, 62, 90, 400, 47, 100, 66]

    def __call__(self, step):
        length = self.lengths[step] if step < len(self.lengths) else self.random.randint(30, 390)
        return torch.randn(16, length, 32, device=DEVICE)


def run(watch):
    collate, model = Collator(3), nn.GRU(32, 64, batch_first=True).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in range(24):
        batch = collate(step)
        out, _ = model(batch)
        loss = out.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = run(vramlens.LeakWatch())
