"""A trace in a context variable grows with every span."""

import os
from contextvars import ContextVar

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [
        {
            "class": ["container", "other"],
            "why": "a tuple in a context variable, made anew at each step",
            "owner": ["trace", "TRACE"],
            "bytes_per_step": 4 * 400 * 256,
        }
    ]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")
TRACE = ContextVar("trace", default=())
SPANS = ContextVar("spans", default=0)


def span(name, tensor):
    SPANS.set(SPANS.get() + 1)
    TRACE.set((*TRACE.get(), (name, tensor)))  # KEEPS
    # FIX: TRACE.set(((name, tensor),))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(100, 256)

    def forward(self, x):
        out = self.layer(x).relu_()  # ALLOCATES
        span("encoder", out.detach())
        return out


def main():
    encoder = Encoder().to(DEVICE).requires_grad_(False)
    watch = vramlens.LeakWatch()
    means = []
    for _ in range(16):
        means.append(encoder(torch.randn(400, 100, device=DEVICE)).mean().item())
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = main()
