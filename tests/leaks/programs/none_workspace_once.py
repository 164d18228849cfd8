"""A workspace that is made at the first use and twice again when it is too small: https://github.com/pytorch/pytorch/issues/95668"""

import os

import torch
from torch import nn

import vramlens

TRUTH = {"not a leak": "a workspace that grew to the size needed, at steps 0, 3 and 5"}
DEVICE = os.environ.get("VRAMLENS_TEST_DEVICE", "cpu")
_workspace = None


def workspace(elements):
    global _workspace
    if _workspace is None or _workspace.numel() < elements:
        _workspace = torch.empty(elements, device=DEVICE)
    return _workspace[:elements]


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3 * 9, device=DEVICE))

    def forward(self, image):
        columns = nn.functional.unfold(image[None], 3)[0]
        space = workspace(columns.numel()).view_as(columns)
        space.copy_(columns)
        return self.weight @ space


@torch.no_grad()
def run(watch):
    layer, outputs = Convolution(), []
    for step in range(20):
        side = (64, 64, 64, 80, 80, 96)[min(step, 5)]
        outputs.append(layer(torch.rand(3, side, side, device=DEVICE)).mean().item())
        watch.step()
    return watch.report()


if __name__ == "__main__":
    report = run(vramlens.LeakWatch())
