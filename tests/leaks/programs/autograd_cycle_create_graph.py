"""backward(create_graph=True): each gradient holds the graph, which holds the parameter: https://github.com/pytorch/pytorch/issues/71068"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["autograd_cycle"],
            "owner": ["grad"],
            # weights and gradients; then what the two passes save: two tanh-sized and three output-sized tensors
            "bytes_per_step": 4 * (2 * (64 * 256 + 256 + 256 * 64 + 64) + 128 * (2 * 256 + 3 * 64)),
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


def build():
    return nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).to(DEVICE)


def sharpness(model, x):
    """The norm of the gradient's gradient, for one model."""
    loss = model(x).pow(3).mean()
    loss.backward(create_graph=True)  # KEEPS
    # FIX: loss.backward()
    norm = sum(parameter.grad.pow(2).sum() for parameter in model.parameters())
    return norm.sqrt().item()


def compare(models, watch):
    x = torch.randn(128, 64, device=DEVICE)
    found = []
    for seed in range(models):
        torch.manual_seed(seed)
        model = build()  # ALLOCATES
        found.append(sharpness(model, x))  # ALLOCATES
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = compare(14, vramlens.LeakWatch())
