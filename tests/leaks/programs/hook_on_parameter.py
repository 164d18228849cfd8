"""Pruning masks the gradient with a tensor hook, added at every step: https://github.com/chr5tphr/zennit/issues/11"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"leaks": [{"class": ["hook"], "owner": ["weight", "hook", "lambda"], "bytes_per_step": 4 * 400 * 300}]}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Pruner:
    def __init__(self, parameter, share):
        self.parameter, self.share = parameter, share
        self.history = []
        self.handles = 0

    def prune(self):
        with torch.no_grad():
            threshold = self.parameter.abs().flatten().kthvalue(int(self.parameter.numel() * self.share)).values
            keep = (self.parameter.abs() > threshold).to(self.parameter.dtype)  # ALLOCATES
            self.parameter.mul_(keep)
        self.history.append(float(threshold))
        self.parameter.register_hook(lambda grad, keep=keep: grad * keep)  # KEEPS
        # FIX: self.handles += 1
        self.handles += 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(400, 300) * 0.05)

    def forward(self, x):
        return torch.tanh(x @ self.weight.t())


def main():
    net = Net().to(DEVICE)
    pruner = Pruner(net.weight, 0.2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch = vramlens.LeakWatch()
    for _ in range(15):
        x = torch.randn(32, 300, device=DEVICE)
        optimizer.zero_grad()
        net(x).pow(2).mean().backward()
        optimizer.step()
        pruner.prune()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
