"""A Mock in the place of the experiment tracker remembers the arguments of every call."""

import os
from unittest import mock

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container", "other"],
            "why": "a list inside unittest.mock; the user's statement is the call",
            "owner": ["tracker", "mock_calls", "call_args_list", "_mock"],
            "bytes_per_step": 4 * 500 * 128,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Experiment:
    def __init__(self, tracker):
        self.tracker = tracker
        self.model = nn.Linear(128, 128).to(DEVICE)
        self.values = []

    def step(self, x):
        with torch.no_grad():
            out = torch.cos(self.model(x))  # ALLOCATES
        self.values.append(out.mean().item())
        self.tracker.log_histogram("out", out)  # KEEPS
        # FIX: self.tracker.log_histogram("out", self.values[-1])


def run():
    experiment = Experiment(mock.MagicMock(name="tracker"))
    watch = vramlens.LeakWatch()
    for _ in range(12):
        experiment.step(torch.randn(500, 128, device=DEVICE))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = run()
