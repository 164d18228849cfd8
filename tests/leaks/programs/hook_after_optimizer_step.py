"""A hook that runs after the optimizer's step is added for each batch, and holds the weights as they were: https://github.com/deepspeedai/DeepSpeed/issues/4856"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["hook"],
            "owner": ["optimizer", "post_hook", "report_change"],
            "bytes_per_step": 4 * (150 * 300 + 300),
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


def remember_change(optimizer, model, changes):
    before = [parameter.detach().clone() for parameter in model.parameters()]  # ALLOCATES

    def report_change(*_):
        changes.append(sum(float((a - b).abs().max()) for a, b in zip(before, model.parameters(), strict=True)))

    return optimizer.register_step_post_hook(report_change)  # KEEPS


def train(model, data, watch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    changes = []
    for batch in data:
        handle = remember_change(optimizer, model, changes)
        optimizer.zero_grad()
        model(batch).logsumexp(1).mean().backward()
        optimizer.step()
        changes[-1] = round(changes[-1], 4) if handle else 0.0
        # FIX: handle.remove()
        watch.step()
    return watch.report()


if __name__ == "__main__":
    torch.manual_seed(1)
    data = [torch.randn(40, 150, device=DEVICE) for _ in range(15)]
    report = train(nn.Linear(150, 300).to(DEVICE), data, vramlens.LeakWatch())
