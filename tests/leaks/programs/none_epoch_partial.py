"""The report comes in the middle of the third epoch, when the epoch's outputs have grown for six steps again: https://github.com/Lightning-AI/pytorch-lightning/issues/7498"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "two epochs have shown that the list is emptied"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(80, 400)
        self.step_outputs = []
        self.epoch_means = []

    def validation_step(self, x):
        with torch.no_grad():
            self.step_outputs.append(self.net(x))

    def on_validation_epoch_end(self):
        self.epoch_means.append(torch.cat(self.step_outputs).mean().item())
        self.step_outputs.clear()


def main():
    module = Module().to(DEVICE)
    watch = vramlens.LeakWatch()
    for step in range(26):
        module.validation_step(torch.randn(200, 80, device=DEVICE))
        if step % 10 == 9:
            module.on_validation_epoch_end()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
