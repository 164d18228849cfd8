"""A metric with list states that nobody resets: https://github.com/Lightning-AI/torchmetrics/issues/1949"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container"],
            "owner": ["preds", "target", "AveragePrecision", "_state"],
            "bytes_per_step": (4 + 8) * 20_000,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self._state = {}
        self.updates = 0

    def add_state(self, name):
        self._state[name] = []

    def __getattr__(self, name):
        state = self.__dict__.get("_state", {})
        return state[name] if name in state else super().__getattr__(name)

    def reset(self):
        for value in self._state.values():
            value.clear()

    def forward(self, preds, target):
        self.updates += 1
        self.update(preds, target)
        return self.batch_value(preds, target)


class AveragePrecision(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("preds")
        self.add_state("target")

    def update(self, preds, target):
        self.preds.append(preds.detach().sigmoid())  # KEEPS ALLOCATES
        # FIX: preds.detach().sigmoid()
        self.target.append(target.long())  # KEEPS ALLOCATES
        # FIX: target.long()

    def batch_value(self, preds, target):
        order = preds.detach().argsort(descending=True)
        hits = target[order].float()
        precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1, device=hits.device)
        return float((precision * hits).sum() / hits.sum().clamp(min=1))


def train(watch):
    model = nn.Linear(30, 1).to(DEVICE)
    metric = AveragePrecision().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    curve = []
    for _ in range(15):
        x = torch.randn(20_000, 30, device=DEVICE)
        y = (x.sum(1) > 0).float()
        scores = model(x).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(scores, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(metric(scores, y))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = train(vramlens.LeakWatch())
