"""clone() keeps the graph, detach() does not: https://github.com/pfnet/pytorch-pfn-extras/pull/49"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["graph"],
            "owner": ["observations", "log"],
            "bytes_per_step": 4 * 256 * (300 + 300 + 32),
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Reporter:
    def __init__(self):
        self.log = []
        self.observation = {}

    def report(self, values):
        self.observation.update({key: value.clone() for key, value in values.items()})

    def flush(self, iteration):
        self.log.append((iteration, self.observation))  # KEEPS
        # FIX: self.log.append(iteration)
        self.observation = {}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(100, 300)
        self.out = nn.Linear(300, 32)

    def forward(self, x):
        return self.out(nn.functional.softplus(self.hidden(x)))


def run(model, reporter, x, watch):
    for iteration in range(12):
        scores = model(x)  # ALLOCATES
        reporter.report({"scores": scores})
        reporter.flush(iteration)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    watch = vramlens.LeakWatch()
    report = run(Classifier().to(DEVICE), Reporter(), torch.randn(256, 100, device=DEVICE), watch)
