"""A hidden state that is carried on and cut at every step, the cured form: https://github.com/pytorch/pytorch/issues/2198"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "the hidden state is detached at each step"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


def repackage(hidden):
    return tuple(each.detach() for each in hidden)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(64, 96, batch_first=True)
        self.head = nn.Linear(96, 64)

    def forward(self, x, hidden):
        out, hidden = self.rnn(x, hidden)
        return self.head(out), hidden


def train(steps, watch):
    net = Net().to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    hidden = tuple(torch.zeros(1, 32, 96, device=DEVICE) for _ in range(2))
    total = 0.0
    for _ in range(steps):
        x = torch.randn(32, 20, 64, device=DEVICE)
        hidden = repackage(hidden)
        out, hidden = net(x, hidden)
        loss = (out - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = train(16, vramlens.LeakWatch())
