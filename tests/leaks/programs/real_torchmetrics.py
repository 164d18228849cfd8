"""A metric of torchmetrics with list states, on outputs with a graph, never reset: https://github.com/Lightning-AI/torchmetrics/issues/2597"""

import os
import warnings

import torch
import torchmetrics
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container"],
            # Each of the two metrics holds one half.
            "owner": ["metric", "targets", "CatMetric.value"],
            "bytes_per_step": 2 * 4 * 50_000,
        }
    ],
    "needs": ["torchmetrics"],
    "stacks": False,
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Evaluation:
    def __init__(self):
        self.metric = torchmetrics.CatMetric().to(DEVICE)
        self.targets = torchmetrics.CatMetric().to(DEVICE)
        self.mean = torchmetrics.MeanMetric().to(DEVICE)

    def add(self, preds, target):
        self.mean.update((preds - target).abs())
        self.metric.update(preds)  # KEEPS
        # FIX: self.metric.reset(); self.metric.update(preds)
        self.targets.update(target * 1.0)  # KEEPS ALLOCATES
        # FIX: self.targets.reset(); self.targets.update(target * 1.0)


def main():
    warnings.simplefilter("ignore")
    model, evaluation = nn.Linear(4, 1).to(DEVICE).requires_grad_(False), Evaluation()
    watch = vramlens.LeakWatch()
    for _ in range(14):
        x = torch.randn(50_000, 4, device=DEVICE)
        evaluation.add(torch.tanh(model(x)).squeeze(1), x.mean(1))  # ALLOCATES
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
