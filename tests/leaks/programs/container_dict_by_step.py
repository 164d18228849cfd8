"""Gradients, kept by step number, to be looked at later."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container"],
            "owner": ["grads", "snapshots"],
            "bytes_per_step": 4 * (200 * 256 + 256 + 256 * 200 + 200),
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class GradientProbe:
    def __init__(self, model):
        self.model = model
        self.grads = {}
        self.norms = {}

    def look(self, step):
        total = 0.0
        current = {}
        for name, parameter in self.model.named_parameters():
            total += float(parameter.grad.norm()) ** 2
            current[name] = parameter.grad.clone()  # ALLOCATES
        self.norms[step] = total**0.5
        self.grads[step] = current  # KEEPS
        # FIX: self.grads[0] = current


def train(steps):
    watch = vramlens.LeakWatch()
    model = nn.Sequential(nn.Linear(200, 256), nn.Tanh(), nn.Linear(256, 200)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    probe = GradientProbe(model)
    for step in range(steps):
        x = torch.randn(64, 200, device=DEVICE)
        loss = nn.functional.l1_loss(model(x), x)
        loss.backward()
        probe.look(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = train(17)
