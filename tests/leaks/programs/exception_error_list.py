"""Failed batches are kept as exceptions, and those hold their frames: https://github.com/pytorch/pytorch/issues/18853"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["exception"], "owner": ["failures"], "bytes_per_step": 4 * 64 * (300 + 900 + 3)}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class BadBatch(Exception):
    pass


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(300, 900), nn.ReLU(), nn.Linear(900, 3)).to(DEVICE)
        self.failures = []
        self.losses = []

    def compute_loss(self, x):
        hidden = self.model[1](self.model[0](x))
        scores = self.model[2](hidden)
        if not torch.isfinite(scores).all():
            raise BadBatch(f"{int((~torch.isfinite(scores)).sum())} scores are not finite")
        return scores.pow(2).mean()

    def step(self, number):
        batch = torch.randn(64, 300, device=DEVICE)
        if number % 2 == 0:
            batch[0, 0] = float("inf")
        with torch.no_grad():
            self.losses.append(self.compute_loss(batch).item())  # ALLOCATES

    def fit(self, steps, watch):
        for number in range(steps):
            for part in range(2):
                try:
                    self.step(2 * number + part)  # ALLOCATES
                except BadBatch as error:
                    self.failures.append(error)  # KEEPS
                    # FIX: self.failures.append(str(error))
            watch.step()
        return watch.report()


if __name__ == "__main__":
    report = Trainer().fit(14, vramlens.LeakWatch())
