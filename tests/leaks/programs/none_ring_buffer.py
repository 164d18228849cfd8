"""Rollouts in a ring of ten slots: written anew from the eleventh step on."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "ten slots, all filled at step 10, then overwritten"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Ring:
    def __init__(self, slots):
        self.slots = [None] * slots
        self.written = 0

    def put(self, item):
        self.slots[self.written % len(self.slots)] = item
        self.written += 1

    def newest(self):
        return self.slots[(self.written - 1) % len(self.slots)]


class Actor:
    def __init__(self, ring):
        self.policy = nn.Linear(200, 4).to(DEVICE)
        self.ring = ring
        self.returns = []

    @torch.no_grad()
    def rollout(self):
        observations = torch.randn(250, 200, device=DEVICE)
        actions = self.policy(observations).argmax(1)
        self.ring.put({"observations": observations, "actions": actions})
        self.returns.append(float(actions.float().mean()))


def main(watch):
    actor = Actor(Ring(10))
    for _ in range(30):
        actor.rollout()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main(vramlens.LeakWatch())
