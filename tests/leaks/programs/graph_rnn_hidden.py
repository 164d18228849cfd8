"""A streaming RNN carries its hidden state, and with it all of the past: https://github.com/pytorch/pytorch/issues/2198"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["graph"],
            "owner": ["hidden", "state"],
            "bytes_per_step": 4 * 256 * (128 + 7 * 256),
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Stream:
    """Frames of a signal as they come."""

    def __init__(self, features):
        self.features = features

    def read(self):
        return torch.rand(256, self.features, device=DEVICE)


class Listener:
    def __init__(self):
        self.cell = nn.LSTMCell(128, 256).to(DEVICE)
        self.head = nn.Linear(256, 4).to(DEVICE)
        self.hidden = None
        self.decisions = []

    def hear(self, frame):
        self.hidden = self.cell(frame, self.hidden)  # KEEPS ALLOCATES
        # FIX: self.hidden = tuple(t.detach() for t in self.cell(frame, self.hidden))
        scores = self.head(self.hidden[0])
        self.decisions.append(int(scores.argmax()))


def main():
    stream, listener = Stream(128), Listener()
    watch = vramlens.LeakWatch()
    for _ in range(20):
        listener.hear(stream.read())  # ALLOCATES
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
