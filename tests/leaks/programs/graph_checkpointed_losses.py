"""Losses of a checkpointed model are kept: what they hold is the inputs of the checkpoints, not what lies between."""

import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import vramlens

TRUTH = {"leaks": [{"class": ["graph"], "owner": ["losses"], "bytes_per_step": 3 * 4 * 300 * 200 + 4}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")
facts = {"forwards": 0}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(200, 800), nn.Linear(800, 200)

    def forward(self, x):
        facts["forwards"] += 1
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)  # ALLOCATES
        return x.pow(2).mean()


def evaluate(model, batches, watch):
    losses, counts = [], []
    for x in batches:
        loss = model(x)  # ALLOCATES
        losses.append(loss)  # KEEPS
        # FIX: losses.append(loss.item())
        counts.append(len(x))
        watch.step()
    before = facts["forwards"]
    report = watch.report()
    facts["in_report"] = facts["forwards"] - before
    return report


if __name__ == "__main__":
    report = evaluate(
        Model().to(DEVICE), [torch.randn(300, 200, device=DEVICE) for _ in range(14)], vramlens.LeakWatch()
    )
