"""A custom Function puts its own output on ctx: https://github.com/pytorch/pytorch/issues/25340"""

import gc
import os

import torch
from torch import nn

import vramlens

TRUTH = {
    "leaks": [{"class": ["autograd_cycle"], "owner": ["ctx", "Swish", "result"], "bytes_per_step": 4 * 256 * 512 * 3}]
}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        gate = torch.sigmoid(x)
        result = x * gate
        ctx.save_for_backward(x, gate)
        ctx.result = result  # KEEPS
        # FIX: ctx.result = None
        return result

    @staticmethod
    def backward(ctx, grad):
        x, gate = ctx.saved_tensors
        return grad * (gate + x * gate * (1 - gate))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 512)
        self.head = nn.Linear(512, 4)

    def forward(self, x):
        hidden = Swish.apply(self.up(x))  # ALLOCATES
        return self.head(hidden)


def score(net, x, watch):
    scores = []
    for _ in range(14):
        scores.append(net(x).softmax(-1).max().item())
        watch.step()
    return watch.report()


if __name__ == "__main__":
    gc.disable()
    watch = vramlens.LeakWatch()
    report = score(Net().to(DEVICE), torch.randn(256, 64, device=DEVICE), watch)
