"""Two leaks at once: outputs with their graph in a dictionary, and gradients in a list."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {"class": ["graph"], "owner": ["outputs"], "bytes_per_step": 4 * 256 * (600 + 50)},
        {"class": ["container"], "owner": ["gradients"], "bytes_per_step": 4 * 600 * 100},
    ],
    "stacks": False,
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(100, 600), nn.Linear(600, 50)

    def forward(self, x):
        return self.two(torch.sigmoid(self.one(x)))  # ALLOCATES


class Study:
    def __init__(self):
        self.net = Net().to(DEVICE)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.outputs, self.gradients, self.losses = {}, [], []

    def train(self, x):
        loss = self.net(x).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.gradients.append(self.net.one.weight.grad.clone())  # KEEPS2 ALLOCATES2
        # FIX: self.gradients.append(self.net.one.weight.grad.norm().item())
        self.optimizer.step()
        self.losses.append(loss.item())

    def probe(self, step, x):
        out = self.net(x)
        self.outputs[step] = out  # KEEPS
        # FIX: self.outputs[step] = out.mean().item()


def main():
    study, x = Study(), torch.randn(256, 100, device=DEVICE)
    watch = vramlens.LeakWatch()
    for step in range(16):
        study.train(x)
        study.probe(step, x)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
