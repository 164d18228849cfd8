"""What convolutions of large batches of images with few channels, and of volumes, ask PyTorch's
allocator for.

    python batches_volumes.py FILE.json

Requests are in order; negative numbers are what is given back. A minute or two on an H200.
"""

from __future__ import annotations

import itertools

import torch
from few_channels import measure

IMAGES = [  # images, inputs, outputs, sides, kernel, stride
    (images, inputs, outputs, (size, size), 3, stride)
    for images, (inputs, outputs), size, stride in itertools.product(
        (96, 768, 3072, 6144),
        ((4, 16), (3, 32), (16, 16), (16, 32), (32, 32), (64, 64)),
        (11, 21, 42, 84),
        (1, 2),
    )
]
VOLUMES = [
    (images, inputs, outputs, sides, kernel, stride)
    for images, (inputs, outputs), sides, (kernel, stride) in itertools.product(
        (2, 12, 48),
        ((3, 64), (16, 32), (64, 64), (64, 128), (128, 128), (256, 256)),
        ((2, 7, 7), (4, 14, 14), (8, 28, 28), (16, 56, 56), (32, 32, 32)),
        ((3, 1), (3, 2), (1, 1), (1, 2)),
    )
]

measure(IMAGES + VOLUMES, (torch.float32, torch.float16, torch.bfloat16), 1_000_000_000)
