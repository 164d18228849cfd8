"""The loss is kept after its backward: the buffers are gone, a scalar and the shells of the graph stay: https://github.com/microsoft/SpareNet/issues/12"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["graph", "container"],
            "why": "the graph behind the loss is empty after its backward; what stays is a scalar in a list",
            "owner": ["losses"],
            "bytes_per_step": 4,
            "verdicts": ["proven", "likely", "possible"],
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def train(model, watch):
    optimizer = torch.optim.AdamW(model.parameters())
    losses, learning_rates = [], []
    for step in range(20):
        x = torch.randn(128, 64, device=DEVICE)
        loss = (model(x) - x.sum(1)).abs().mean()  # ALLOCATES
        losses.append(loss)  # KEEPS
        # FIX: losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        learning_rates.append(1e-3 / (step + 1))
        watch.step()
    return watch.report()


if __name__ == "__main__":
    watch = vramlens.LeakWatch()
    report = train(Regression().to(DEVICE), watch)
