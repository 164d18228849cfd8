"""Trains a small network and keeps what it predicted, for a chart at the end.

    vramlens run --leaks leak.py                # with or without a GPU

One line leaks: the predictions keep the memory of every step. ``fixed.py`` is the same program, mended.
"""

from __future__ import annotations

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def train(steps: int) -> list[torch.Tensor]:
    """Trains for some steps; the predictions of each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    history = []
    for _ in range(steps):
        batch = torch.randn(256, 64, device=device)
        predicted = model(batch)
        loss = (predicted - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(predicted)
    return history


if __name__ == "__main__":
    history = train(steps=12)
    print(f"kept the predictions of {len(history)} steps")
