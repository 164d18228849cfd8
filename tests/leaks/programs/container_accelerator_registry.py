"""Each fold prepares a model; the accelerator remembers all of them: https://github.com/huggingface/accelerate/issues/84"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container"],
            "owner": ["_models", "_optimizers", "Accelerator"],
            # weights, their gradients and Adam's two moments; its step counters are scalars on the CPU
            "bytes_per_step": 4 * 4 * (120 * 300 + 300 + 300 * 5 + 5) + 4 * 4,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Accelerator:
    def __init__(self):
        self._models = []
        self._optimizers = []
        self.prepared = 0

    def prepare(self, model, optimizer):
        self.prepared += 1
        self._models.append(model)  # KEEPS
        # FIX: self._models.append(type(model))
        self._optimizers.append(optimizer)  # KEEPS
        # FIX: self._optimizers.append(type(optimizer))
        return model, optimizer


def build():
    model = nn.Sequential(nn.Linear(120, 300), nn.ReLU(), nn.Linear(300, 5)).to(DEVICE)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def train_fold(accelerator, data):
    model, optimizer = accelerator.prepare(*build())  # ALLOCATES
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(data), data[:, :5])
        loss.backward()  # ALLOCATES
        optimizer.step()  # ALLOCATES
    return loss.item()


def cross_validate(folds, watch):
    accelerator = Accelerator()
    data = torch.randn(64, 120, device=DEVICE)
    scores = []
    for _ in range(folds):
        scores.append(train_fold(accelerator, data))  # ALLOCATES
        watch.step()
    return watch.report()


if __name__ == "__main__":
    watch = vramlens.LeakWatch()
    report = cross_validate(14, watch)
