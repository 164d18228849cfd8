"""Log lines are deferred as partial(write, tensor), to save a synchronisation; they are flushed never."""

import functools
import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["closure"], "owner": ["pending", "partial"], "bytes_per_step": 4 * (250 * 600 + 600)}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Logger:
    def __init__(self):
        self.pending = []
        self.lines = []

    def write(self, name, values):
        self.lines.append(f"{name} {float(values.norm()):.2f}")

    def later(self, name, values):
        self.pending.append(functools.partial(self.write, name, values))  # KEEPS
        # FIX: self.write(name, values)

    def flush(self):
        for each in self.pending:
            each()
        self.pending.clear()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(250, 600)

    def forward(self, x):
        return torch.relu(self.fc(x)).mean()


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])  # ALLOCATES


def fit(model, logger, watch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for step in range(14):
        optimizer.zero_grad()
        model(torch.randn(32, 250, device=DEVICE)).backward()
        logger.later(f"gradient {step}", gradients(model))
        optimizer.step()
        watch.step()


watch = vramlens.LeakWatch()
logger = Logger()
fit(Model().to(DEVICE), logger, watch)
