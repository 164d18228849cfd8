"""Trains a small network and keeps one number a step, for a chart at the end.

    vramlens run --leaks fixed.py

``leak.py`` keeps the predictions themselves, and with them the memory of every step.
"""

from __future__ import annotations

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def train(steps: int) -> list[float]:
    """Trains for some steps; the spread of the predictions of each."""
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
        history.append(predicted.std().item())
    return history


if __name__ == "__main__":
    history = train(steps=12)
    print(f"kept one number of each of {len(history)} steps")
