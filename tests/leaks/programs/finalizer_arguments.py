"""weakref.finalize holds its arguments until the object dies: the object is the model, which lives to the end."""

import os
import weakref

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["closure", "cache", "container", "other"],
            "why": "no class is meant for finalizers: a registry of callbacks with their arguments",
            "owner": ["finalize", "register", "_registry"],
            "bytes_per_step": 4 * 90_000,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class SharedBuffers:
    """Buffers to be released with the model."""

    def __init__(self, model):
        self.model = model
        self.released = 0

    def release(self, buffer):
        self.released += buffer.numel()

    def lend(self, elements):
        buffer = torch.ones(elements, device=DEVICE)  # ALLOCATES
        weakref.finalize(self.model, self.release, buffer)  # KEEPS
        # FIX: self.release(buffer)
        return buffer


def main():
    model = nn.Linear(300, 300).to(DEVICE)
    buffers = SharedBuffers(model)
    watch = vramlens.LeakWatch()
    sums = []
    for _ in range(16):
        buffer = buffers.lend(90_000)
        with torch.no_grad():
            sums.append(model(buffer.view(300, 300)).sum().item())
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
