"""A module registers a new buffer for every task."""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [{"class": ["container"], "owner": ["_buffers", "fisher", "EWC"], "bytes_per_step": 4 * (300 * 256 + 256)}]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class EWC(nn.Module):
    """Elastic weight consolidation: remembers how much each task needs each weight."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.tasks = 0

    def consolidate(self):
        for name, parameter in self.model.named_parameters():
            importance = parameter.grad.pow(2)  # ALLOCATES
            self.register_buffer(f"fisher_{self.tasks}_{name.replace('.', '_')}", importance)  # KEEPS
            # FIX: self.register_buffer(f"fisher_{name.replace('.', '_')}", importance)
        self.tasks += 1


def train_tasks(n, watch):
    ewc = EWC(nn.Linear(300, 256).to(DEVICE))
    optimizer = torch.optim.SGD(ewc.model.parameters(), lr=0.1)
    scores = []
    for task in range(n):
        for _ in range(2):
            optimizer.zero_grad()
            loss = ewc.model(torch.randn(64, 300, device=DEVICE)).sub(task).pow(2).mean()
            loss.backward()
            optimizer.step()
        ewc.consolidate()
        scores.append(loss.item())
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = train_tasks(16, vramlens.LeakWatch())
