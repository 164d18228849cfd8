"""Thousands of floats, strings and dictionaries of them are logged: the heap of Python grows, no tensor does."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "a few hundred numbers a step, no tensors"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Tracker:
    def __init__(self):
        self.losses, self.norms, self.rows, self.messages = [], {}, [], []

    def log(self, step, loss, model):
        self.losses.append(loss)
        for name, parameter in model.named_parameters():
            self.norms[f"{name}/{step}"] = parameter.grad.norm().item()
        self.rows.extend({"step": step, "i": i, "value": loss * i} for i in range(100))
        self.messages.append(f"step {step}: {loss:.4f}")


def main(watch):
    model, tracker = nn.Linear(200, 100).to(DEVICE), Tracker()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(24):
        loss = model(torch.randn(64, 200, device=DEVICE)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tracker.log(step, loss.item(), model)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main(vramlens.LeakWatch())
