"""@functools.cache on a method keeps every instance: https://github.com/pytorch/pytorch/pull/149354"""

import functools
import os

import torch

import vramlens

TRUTH = {"leaks": [{"class": ["cache"], "owner": ["names", "cache"], "bytes_per_step": 6 * 4 * 25_000}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Checkpoint:
    """Weights as they come from a worker."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.applied = False

    @functools.cache  # noqa: B019  # KEEPS
    # FIX: # names of a checkpoint
    def names(self):  # KEEPS
        return tuple(sorted(self.tensors))

    def total(self):
        return sum(float(self.tensors[name].sum()) for name in self.names())


def receive(step):
    layers = [f"layer{n}.weight" for n in range(6)]
    return Checkpoint({name: torch.full((25_000,), 0.1 * step, device=DEVICE) for name in layers})  # ALLOCATES


class Server:
    def __init__(self):
        self.versions = []
        self.current = None

    def update(self, checkpoint):
        self.versions.append((len(self.versions), round(checkpoint.total(), 3)))
        self.current = checkpoint


def main():
    server = Server()
    watch = vramlens.LeakWatch()
    for step in range(16):
        server.update(receive(step))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
