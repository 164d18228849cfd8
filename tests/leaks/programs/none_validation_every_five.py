"""Every fifth step a validation gathers its logits, and lets them go with the next one."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "one validation's logits at a time"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Loop:
    def __init__(self):
        self.model = nn.Linear(64, 200).to(DEVICE)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.val_logits = []
        self.scores = {}

    def training_step(self, x):
        loss = self.model(x).logsumexp(1).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @torch.no_grad()
    def validate(self, step):
        self.val_logits = []
        for _ in range(4):
            self.val_logits.append(self.model(torch.randn(256, 64, device=DEVICE)))
        self.scores[step] = float(torch.cat(self.val_logits).std())


def main():
    loop = Loop()
    watch = vramlens.LeakWatch()
    for step in range(25):
        loop.training_step(torch.randn(128, 64, device=DEVICE))
        if step % 5 == 4:
            loop.validate(step)
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
