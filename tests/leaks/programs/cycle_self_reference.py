"""An object that refers to itself waits for a collector that is off, as large trainings run it: https://github.com/pytorch/pytorch/issues/20199"""

import gc
import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["cycle"], "owner": ["Workspace", "me", "root"], "bytes_per_step": 4 * 150_000}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Workspace:
    def __init__(self, elements):
        self.scratch = torch.zeros(elements, device=DEVICE)  # ALLOCATES
        self.root = self  # KEEPS
        # FIX: self.root = None
        self.uses = 0

    def fill(self, value):
        self.uses += 1
        return self.scratch.fill_(value).sum().item()


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.sums = []

    def train_step(self, batch):
        workspace = Workspace(150_000)
        self.sums.append(workspace.fill(len(self.sums)))
        loss = self.model(batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def main():
    gc.disable()
    trainer = Trainer(nn.Linear(50, 50).to(DEVICE))
    watch = vramlens.LeakWatch()
    for _ in range(18):
        trainer.train_step(torch.randn(64, 50, device=DEVICE))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
