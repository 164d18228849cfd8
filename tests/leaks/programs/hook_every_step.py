"""A hook that masks channels is registered again at every step and never removed: https://github.com/pytorch/pytorch/pull/139214"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["hook"], "owner": ["drop", "hook"], "bytes_per_step": 4 * 128 * 500}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Masker:
    """Drops some hidden units, other ones at every step."""

    def __init__(self, layer, rate):
        self.layer, self.rate = layer, rate
        self.steps = 0
        self.handle = None

    def renew(self, batch):
        self.steps += 1
        mask = torch.rand(batch, self.layer.out_features, device=DEVICE).gt(self.rate).float()  # ALLOCATES

        def drop(module, inputs, output):
            return output * mask

        self.handle = self.layer.register_forward_hook(drop)  # KEEPS
        # FIX: self.handle and self.handle.remove(); self.handle = self.layer.register_forward_hook(drop)


def main(watch):
    model = nn.Sequential(nn.Linear(100, 500), nn.ReLU(), nn.Linear(500, 1)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    masker = Masker(model[0], 0.1)
    losses = []
    for _ in range(18):
        masker.renew(128)
        loss = model(torch.randn(128, 100, device=DEVICE)).mean().abs()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main(vramlens.LeakWatch())
