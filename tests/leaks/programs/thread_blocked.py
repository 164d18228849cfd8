"""Each request starts a thread that waits for an answer which never comes, with its picture."""

import os
import threading

import torch

import vramlens

TRUTH = {"leaks": [{"class": ["thread"], "owner": ["deliver", "picture"], "bytes_per_step": 4 * 128 * 160}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Courier:
    def __init__(self):
        self.answered = threading.Event()
        self.sums = []

    def deliver(self, picture):
        self.answered.wait()
        self.sums.append(picture.sum().item())

    def send(self, picture):
        threading.Thread(target=self.deliver, args=(picture,), daemon=True).start()  # KEEPS
        # FIX: self.sums.append(picture.sum().item())


def serve(requests, watch):
    courier = Courier()
    for _ in range(requests):
        courier.send(torch.rand(128, 160, device=DEVICE))  # ALLOCATES
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = serve(12, vramlens.LeakWatch())
