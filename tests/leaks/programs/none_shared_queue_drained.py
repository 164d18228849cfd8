"""The same queue with a consumer: what waits is what the consumer has not taken yet, and never more than a few."""

import os
import time

import torch
import torch.multiprocessing as mp

import vramlens

TRUTH = {"not a leak": "each picture is taken in the step that sends it"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


def main():
    inbox, watch, seen = mp.Queue(), vramlens.LeakWatch(), 0
    for _ in range(14):
        inbox.put(torch.randn(200, 500, device=DEVICE))
        seen += inbox.get(timeout=20).numel()
        time.sleep(0.02)  # the simulation goes on
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
