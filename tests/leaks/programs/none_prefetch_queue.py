"""A thread prefetches batches into a queue of four."""

import os
import queue
import threading

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "Queue(maxsize=4) between a producer and a consumer"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Prefetcher:
    def __init__(self, batches, depth):
        self.queue = queue.Queue(maxsize=depth)
        self.batches = batches
        self.thread = threading.Thread(target=self._fill, daemon=True)
        self.thread.start()

    def _fill(self):
        for number in range(self.batches):
            self.queue.put(torch.full((256, 200), float(number), device=DEVICE))
        self.queue.put(None)

    def __iter__(self):
        while (batch := self.queue.get()) is not None:
            yield batch


def train(watch):
    model = nn.Linear(200, 20).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    sums = []
    for batch in Prefetcher(24, 4):
        optimizer.zero_grad()
        loss = model(batch).abs().mean()
        loss.backward()
        optimizer.step()
        sums.append(loss.item())
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = train(vramlens.LeakWatch())
