"""The averaged weights of every step, kept to pick the best one later."""

import copy
import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [{"class": ["container"], "owner": ["history"], "bytes_per_step": 4 * (100 * 300 + 300 + 300 * 100 + 100)}]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class EMA:
    def __init__(self, model, decay):
        self.shadow = {name: value.clone() for name, value in model.state_dict().items()}
        self.decay = decay
        self.history = []
        self.updates = 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        for name, value in model.state_dict().items():
            self.shadow[name].mul_(self.decay).add_(value, alpha=1 - self.decay)
        self.history.append(copy.deepcopy(self.shadow))  # KEEPS ALLOCATES
        # FIX: self.history = [copy.deepcopy(self.shadow)]


def main():
    model = nn.Sequential(nn.Linear(100, 300), nn.SiLU(), nn.Linear(300, 100)).to(DEVICE)
    ema = EMA(model, 0.99)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(128, 100, device=DEVICE)
    watch = vramlens.LeakWatch()
    for _ in range(14):
        loss = (model(data) - data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
