"""A metric's list state holds predictions with their graphs: https://github.com/Lightning-AI/pytorch-lightning/pull/4313"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["graph"],
            "owner": ["preds"],
            "bytes_per_step": 4 * 300 * (256 + 64),
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class ListMetric:
    """compute() sees all the batches since reset()."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.preds = []
        self.targets = []

    def update(self, preds, targets):
        self.preds.append(preds)  # KEEPS
        # FIX: self.preds.append(float(preds.detach().mean()))
        self.targets.append(targets)

    def compute(self):
        return float((torch.cat(self.preds) - torch.cat(self.targets)).abs().mean())


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 64), nn.Tanh())
        self.metric = ListMetric()

    def validation_step(self, batch):
        x, y = batch
        y_hat = self.net(x)  # ALLOCATES
        self.metric.update(y_hat, y)
        return y_hat.detach().std().item()


class Trainer:
    def validate(self, module, loader, watch):
        self.progress = []
        for batch in loader:
            self.progress.append(module.validation_step(batch))
            watch.step()


watch = vramlens.LeakWatch()
loader = [(torch.randn(300, 32, device=DEVICE), torch.randn(300, 64, device=DEVICE)) for _ in range(14)]
module = Module().to(DEVICE)
trainer = Trainer()
trainer.validate(module, loader, watch)
report = watch.report()
