"""Activations in a WeakValueDictionary, noted at every step: an entry lives as long as its batch."""

import os
import weakref

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "weak references hold nothing"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Recorder:
    def __init__(self):
        self.by_step = weakref.WeakValueDictionary()
        self.seen = []

    def note(self, step, tensor):
        self.by_step[step] = tensor
        self.seen.append(weakref.ref(tensor))

    def alive(self):
        return sum(reference() is not None for reference in self.seen)


def run(watch):
    model, recorder = nn.Sequential(nn.Linear(90, 500), nn.ReLU()).to(DEVICE), Recorder()
    counts = []
    for step in range(18):
        out = model(torch.randn(200, 90, device=DEVICE))
        recorder.note(step, out)
        out.mean().backward()
        counts.append(recorder.alive())
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = run(vramlens.LeakWatch())
