"""A second-order step on throw-away heads, with gradients that keep their graph: https://github.com/f-dangel/backpack/issues/258"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [{"class": ["autograd_cycle"], "owner": ["grad"], "bytes_per_step": 4 * (2 * 512 * 32 + 3 * 256 * 32) + 4}]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Head(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, 32, device=DEVICE) / width**0.5)

    def forward(self, features):
        return torch.sigmoid(features @ self.weight)


class Probe:
    """Measures how curved the loss of a fresh head is."""

    def __init__(self, features):
        self.features = features
        self.curvatures = []

    def measure(self):
        head = Head(self.features.shape[1])  # ALLOCATES
        loss = (head(self.features) - 0.5).pow(2).sum()  # ALLOCATES
        loss.backward(create_graph=True)  # KEEPS ALLOCATES
        # FIX: head.weight.grad, = torch.autograd.grad(loss, head.weight)
        direction = head.weight.grad.detach().sign()
        self.curvatures.append(float((head.weight.grad * direction).sum()))


def main():
    watch = vramlens.LeakWatch()
    probe = Probe(torch.randn(256, 512, device=DEVICE))
    for _ in range(16):
        probe.measure()  # ALLOCATES
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
