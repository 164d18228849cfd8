"""Cycles wait for a collection, which the trainer runs at every fifth step, as large trainings do: https://github.com/pytorch/pytorch/issues/95462"""

import gc
import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "gc.collect() at every fifth step frees what the cycles hold"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Batch:
    def __init__(self, data):
        self.data = data
        self.view = View(self)


class View:
    def __init__(self, batch):
        self.batch = batch


class GarbageCollection:
    def __init__(self, every):
        gc.disable()
        self.every = every

    def run(self, step):
        if step % self.every == self.every - 1:
            gc.collect()


def train(watch):
    collection, model = GarbageCollection(5), nn.Linear(120, 8).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(30):
        batch = Batch(torch.randn(400, 120, device=DEVICE))
        optimizer.zero_grad()
        model(batch.view.batch.data).pow(2).mean().backward()
        optimizer.step()
        collection.run(step)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = train(vramlens.LeakWatch())
