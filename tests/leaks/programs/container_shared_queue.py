"""Batches for a worker process that does not take them: a queue's tensors wait in shared memory, behind file descriptors: https://github.com/pytorch/pytorch/issues/149187"""

import os
import time

import torch
import torch.multiprocessing as mp
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container", "other"],
            "why": "a queue; what is in it has left the process's tensors",
            "owner": ["inbox", "Queue"],
            "bytes_per_step": 4 * 200 * 500,
        }
    ],
    "stacks": False,
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Renderer:
    def __init__(self):
        self.inbox = mp.Queue()
        self.sent = 0

    def show(self, picture):
        self.inbox.put(picture)  # KEEPS
        # FIX: self.sent += picture.numel() > 0
        self.sent += 1


def main():
    model, renderer, watch = nn.Linear(60, 500).to(DEVICE).requires_grad_(False), Renderer(), vramlens.LeakWatch()
    for _ in range(14):
        renderer.show(model(torch.randn(200, 60, device=DEVICE)))  # ALLOCATES
        time.sleep(0.02)  # the simulation goes on
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
