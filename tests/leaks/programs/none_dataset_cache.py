"""The dataset keeps what it has decoded: grows in the first epoch, serves the later ones."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import vramlens

TRUTH = {"not a leak": "the cache is full after the first epoch of eight steps"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class CachedImages(Dataset):
    def __init__(self, n):
        self.n = n
        self.cache = {}

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = (torch.rand(3, 64, 64) * (index + 1)).to(DEVICE), index % 5
        return self.cache[index]


def fit(epochs, watch):
    loader = DataLoader(CachedImages(32), batch_size=4, shuffle=True)
    model = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 256, 5)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    log = []
    for epoch in range(epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.append((epoch, loss.item()))
            watch.step()
    return watch.report()


if __name__ == "__main__":
    report = fit(4, vramlens.LeakWatch())
