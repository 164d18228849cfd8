"""The last eight outputs, in a deque that forgets: grows for eight steps."""

import os
from collections import deque

import torch

import vramlens

TRUTH = {"not a leak": "deque(maxlen=8) has been full since step 8"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


def main() -> vramlens.LeakWatch:
    model = torch.nn.Linear(256, 1024).to(DEVICE)
    recent: deque[torch.Tensor] = deque(maxlen=8)
    watch = vramlens.LeakWatch()
    for _ in range(24):
        with torch.no_grad():
            recent.append(model(torch.randn(128, 256, device=DEVICE)))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
