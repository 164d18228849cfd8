"""A state that is scaled by a learned factor and never cut: https://github.com/pytorch/pytorch/issues/140792"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["graph"],
            "owner": ["state", "memory"],
            "bytes_per_step": 4 * 512 * 256 * 2 + 4 * 256,  # two states and the sigmoid
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class DecayingMemory(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.decay = nn.Parameter(torch.full((width,), 0.9))
        self.state = None

    def reset(self, batch):
        self.state = torch.zeros(batch, len(self.decay), device=self.decay.device)

    def forward(self, x):
        mixed = self.state * self.decay + x  # ALLOCATES
        self.state = mixed * self.decay.sigmoid()  # KEEPS ALLOCATES
        # FIX: self.state = (mixed * self.decay.sigmoid()).detach()
        return self.state.mean(1)


def roll(memory, steps, watch):
    means = []
    for step in range(steps):
        out = memory(torch.full((512, 256), float(step), device=DEVICE))
        means.append(out.mean().item())
        watch.step()
    return watch.report()


if __name__ == "__main__":
    watch = vramlens.LeakWatch()
    memory = DecayingMemory(256).to(DEVICE)
    memory.reset(512)
    report = roll(memory, 16, watch)
