"""A lambda in the module refers to the module; the models are old enough for the full collection only: https://github.com/pytorch/pytorch/issues/28647"""

import gc
import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {"class": ["cycle"], "owner": ["Scorer", "activation", "lambda"], "bytes_per_step": 4 * (300 * 500 + 500)}
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Scorer(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.project = nn.Linear(300, 500, device=DEVICE)  # ALLOCATES
        self.temperature = temperature
        self.activation = lambda x: torch.tanh(x / self.temperature)  # KEEPS
        # FIX: self.activation = lambda x: torch.tanh(x / temperature)

    def forward(self, x):
        return self.activation(self.project(x))


class Ensemble:
    """Tries one member after the other; only the best score is kept."""

    def __init__(self):
        self.best = float("-inf")
        self.tried = []

    def try_member(self, temperature, x):
        member = Scorer(temperature)
        gc.collect(1)  # a long training ages the member; only a full collection looks at it again
        with torch.no_grad():
            score = float(member(x).mean())
        self.best = max(self.best, score)
        self.tried.append((temperature, score))


def main(watch):
    gc.set_threshold(100_000, 50, 1000)
    ensemble = Ensemble()
    x = torch.randn(16, 300, device=DEVICE)
    for step in range(16):
        ensemble.try_member(1.0 + step, x)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main(vramlens.LeakWatch())
