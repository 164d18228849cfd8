"""Gradients and Adam's moments come with the first step: https://github.com/pytorch/pytorch/issues/18643"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "the optimizer's state and the gradients are made once, at the first step"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))

    def forward(self, x):
        return x + self.body(x)


def train(steps, watch):
    model = Net().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for _ in range(steps):
        x = torch.randn(128, 256, device=DEVICE)
        loss = nn.functional.mse_loss(model(x), x.roll(1, 0))
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = train(14, vramlens.LeakWatch())
