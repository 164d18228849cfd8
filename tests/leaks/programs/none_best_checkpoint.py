"""The best weights are copied whenever the score improves, which it does at every step."""

import copy
import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "each copy replaces the one before"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best = patience, float("inf")
        self.weights = None
        self.history = []

    def __call__(self, loss, model):
        self.history.append(loss)
        if loss < self.best:
            self.best = loss
            self.weights = copy.deepcopy(model.state_dict())
        return len(self.history) - self.history.index(self.best) > self.patience


def main(watch):
    torch.manual_seed(3)
    model = nn.Linear(400, 300).to(DEVICE)
    x = torch.randn(64, 400, device=DEVICE)
    optimizer, stop = torch.optim.SGD(model.parameters(), lr=0.5), EarlyStopping(5)
    for _ in range(18):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if stop(loss.item(), model):
            break
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main(vramlens.LeakWatch())
