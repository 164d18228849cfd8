"""What the convolutions of usual networks ask PyTorch's allocator for.

    python network_layers.py FILE.json

Layers of residual networks: 1 x 1 kernels that widen and narrow, 3 x 3 kernels, with and without a
stride, on images of even and odd sides. Requests are in order; negative numbers are what is given
back. Three quarters of a minute on an H200.
"""

from __future__ import annotations

import itertools

import torch
from few_channels import measure

SIDES = (7, 13, 14, 26, 28, 52, 56)
WIDENED = (
    (64, 256), (128, 512), (256, 1024), (512, 2048), (96, 384), (384, 1536), (64, 64),
)  # fmt: skip
NARROWED = (
    (256, 64), (256, 128), (512, 128), (512, 256), (1024, 256), (1024, 512), (2048, 512), (384, 96), (672, 112),
)  # fmt: skip
STRIDED = ((256, 512), (512, 1024), (1024, 2048), (64, 128), (128, 256), (256, 256))
LAYERS = [
    *(((inputs, outputs), 1, 1) for inputs, outputs in (*WIDENED, *NARROWED)),
    *(((inputs, outputs), 1, 2) for inputs, outputs in STRIDED),
    *(((channels, channels), 3, stride) for channels in (64, 128, 256, 512) for stride in (1, 2)),
    *((pair, 3, 1) for pair in ((128, 64), (256, 128), (512, 256), (64, 128), (128, 256))),
    ((256, 256), 2, 2),
]
IMAGES = [  # images, inputs, outputs, sides, kernel, stride
    (images, inputs, outputs, (side, side), kernel, stride)
    for images, ((inputs, outputs), kernel, stride), side in itertools.product(
        (8, 32, 96), LAYERS, SIDES
    )
]

if __name__ == "__main__":
    measure(IMAGES, (torch.float32, torch.bfloat16), 200_000_000, (False, True))
