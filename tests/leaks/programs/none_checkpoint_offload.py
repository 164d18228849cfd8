"""Non-reentrant checkpoints and saved tensors on the CPU, alive while the report is made: nothing may run twice: https://github.com/pytorch/pytorch/pull/139214"""

import os

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

import vramlens

TRUTH = {"not a leak": "one graph at a time"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")
facts = {"forwards": 0}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        facts["forwards"] += 1
        return x + torch.relu(self.layer(x))


def loss_of(blocks, x):
    with save_on_cpu():
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x.pow(2).mean()


def train(watch):
    blocks = nn.ModuleList(Block(256) for _ in range(3)).to(DEVICE)
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
    for _ in range(14):
        x = torch.randn(128, 256, device=DEVICE)
        loss = loss_of(blocks, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = loss_of(blocks, x)
        watch.step()
    before = facts["forwards"]
    report = watch.report()
    facts["in_report"] = facts["forwards"] - before
    loss.backward()
    facts["after"] = facts["forwards"] - before
    return report


if __name__ == "__main__":
    report = train(vramlens.LeakWatch())
