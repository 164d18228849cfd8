"""A replay buffer that grows until a flag says that it is full, and writes over the oldest from then on."""

import os

import torch

import vramlens

TRUTH = {"not a leak": "the flag is set at a hundred, and the buffer is a ring from there", "settled": False}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Replay:
    def __init__(self, capacity):
        self.capacity, self.position, self.full = capacity, 0, False
        self.data = []

    def add(self, observation):
        if self.full:
            self.data[self.position] = observation
            self.position = (self.position + 1) % self.capacity
        else:
            self.data.append(observation)
            if len(self.data) == self.capacity:
                self.full = True


def main():
    replay = Replay(100)
    watch = vramlens.LeakWatch()
    for _ in range(24):
        replay.add(torch.randn(64, 64, device=DEVICE))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
