"""A metric collects predictions over an epoch and is reset at its end: https://github.com/Lightning-AI/pytorch-lightning/issues/7498"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "drops to nothing at each epoch's end"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Accuracy:
    def __init__(self):
        self.preds, self.targets, self.epochs = [], [], []

    def update(self, preds, targets):
        self.preds.append(preds.detach())
        self.targets.append(targets)

    def compute(self):
        value = float((torch.cat(self.preds).argmax(1) == torch.cat(self.targets)).float().mean())
        self.epochs.append(value)
        return value

    def reset(self):
        self.preds.clear()
        self.targets.clear()


def fit(epochs, batches, watch):
    model, metric = nn.Linear(64, 300).to(DEVICE), Accuracy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for _ in range(batches):
            x, y = torch.randn(256, 64, device=DEVICE), torch.randint(0, 300, (256,), device=DEVICE)
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            metric.update(logits, y)
            watch.step()
        metric.compute()
        metric.reset()
    return watch.report()


if __name__ == "__main__":
    report = fit(4, 8, vramlens.LeakWatch())
