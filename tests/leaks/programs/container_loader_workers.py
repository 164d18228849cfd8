"""Batches from a loader's workers are kept for a look at the end (their tensors lie in shared memory)."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import vramlens

TRUTH = {
    "leaks": [{"class": ["container"], "owner": ["hard_examples"], "bytes_per_step": 4 * 16 * 3 * 48 * 48}],
    "stacks": False,
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Pictures(Dataset):
    def __len__(self):
        return 16 * 18

    def __getitem__(self, index):
        return torch.full((3, 48, 48), index / 100), index % 4


class Miner:
    def __init__(self, model):
        self.model = model
        self.hard_examples = []
        self.losses = []

    def look(self, x, y):
        with torch.no_grad():
            loss = nn.functional.cross_entropy(self.model(x.flatten(1)), y)
        self.losses.append(loss.item())
        if loss > 0:
            self.hard_examples.append((self.losses[-1], x))  # KEEPS
            # FIX: self.hard_examples.append((self.losses[-1], x.shape))


def mine(watch):
    miner = Miner(nn.Linear(3 * 48 * 48, 4).to(DEVICE))
    for x, y in DataLoader(Pictures(), batch_size=16, num_workers=2):  # ALLOCATES
        miner.look(x.to(DEVICE), y.to(DEVICE))  # ALLOCATES
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = mine(vramlens.LeakWatch())
