"""A prioritised replay buffer with room for 40: full after ten steps, then the oldest goes."""

import os
import random

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "capacity 40, full at step 10"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Replay:
    def __init__(self, capacity):
        self.capacity, self.items, self.priorities = capacity, [], []

    def push(self, item, priority):
        self.items.append(item)
        self.priorities.append(priority)
        if len(self.items) > self.capacity:
            self.items.pop(0)
            self.priorities.pop(0)

    def sample(self, n):
        return [self.items[i] for i in random.choices(range(len(self.items)), weights=self.priorities, k=n)]


def play(watch):
    random.seed(0)
    network, replay = nn.Linear(64 * 64, 4).to(DEVICE), Replay(40)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    for step in range(32):
        for _ in range(4):
            frame = torch.rand(64 * 64, device=DEVICE)
            replay.push((frame, torch.randint(0, 4, (), device=DEVICE)), 1.0 + step % 3)
        states, actions = zip(*replay.sample(8), strict=True)
        loss = network(torch.stack(states)).gather(1, torch.stack(actions)[:, None]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = play(vramlens.LeakWatch())
