"""The thirty best weights so far: a sorted list, cut off at its length each time, that is not full yet."""

import os

import torch

import vramlens

TRUTH = {"not a leak": "the list is cut off at thirty", "settled": False}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Best:
    def __init__(self, size):
        self.size = size
        self.top = []

    def offer(self, score, weights):
        self.top = sorted([*self.top, (score, weights)], key=lambda pair: -pair[0])[: self.size]


def main():
    best = Best(30)
    watch = vramlens.LeakWatch()
    for step in range(20):
        best.offer(float(step), torch.randn(80, 80, device=DEVICE))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
