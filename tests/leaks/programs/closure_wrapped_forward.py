"""forward is wrapped anew at every step, around the wrapper of the step before."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [{"class": ["closure"], "owner": ["forward", "original", "wrapped"], "bytes_per_step": 4 * 64 * 1000}]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1000, 30)
        self.calls = 0

    def forward(self, x):
        return self.inner(x)


def perturb(net, strength):
    """Adds noise to what goes in, and means to do so once."""
    noise = torch.randn(64, 1000, device=DEVICE) * strength  # ALLOCATES
    original = net.forward  # KEEPS
    # FIX: original = type(net).forward.__get__(net)

    def wrapped(x):
        net.calls += 1
        return original(x + noise)

    net.forward = wrapped  # KEEPS


def main():
    net = Net().to(DEVICE)
    x = torch.randn(64, 1000, device=DEVICE)
    watch = vramlens.LeakWatch()
    answers = []
    with torch.no_grad():
        for step in range(16):
            perturb(net, 0.01 * step)
            answers.append(net(x).argmax().item())
            watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
