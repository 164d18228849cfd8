"""What convolutions in float32 ask PyTorch's allocator for where TF32 is not allowed.

    python without_tf32.py FILE.json

Requests are in order; negative numbers are what is given back. A minute or two on an H200.
"""

from __future__ import annotations

import itertools

import torch
from few_channels import measure

PAIRS = (
    (1, 32),
    (3, 64),
    (4, 36),
    (16, 16),
    (36, 36),
    (36, 72),
    (72, 36),
    (64, 64),
    (64, 128),
    (128, 128),
    (144, 288),
    (256, 256),
    (512, 512),
    (64, 3),
)
IMAGES = [  # images, inputs, outputs, sides, kernel, stride
    (images, inputs, outputs, (size, size), kernel, stride)
    for images, (inputs, outputs), size, (kernel, stride) in itertools.product(
        (2, 10, 64),
        PAIRS,
        (9, 18, 37, 64, 150, 300),
        ((3, 1), (3, 2), (1, 1), (1, 2), (5, 1), (7, 2), (4, 2)),
    )
]
VOLUMES = [
    (images, inputs, outputs, sides, kernel, stride)
    for images, (inputs, outputs), sides, (kernel, stride) in itertools.product(
        (2, 8),
        ((1, 32), (16, 32), (32, 32), (64, 64), (128, 128)),
        ((8, 28, 28), (32, 32, 32), (64, 64, 64)),
        ((3, 1), (3, 2), (1, 1)),
    )
]
SEQUENCES = [
    (images, inputs, outputs, (length,), kernel, stride)
    for images, (inputs, outputs), length, (kernel, stride) in itertools.product(
        (8, 64),
        ((1, 32), (32, 32), (80, 256), (128, 128), (512, 512)),
        (250, 4000),
        ((3, 1), (7, 1), (4, 2), (1, 1)),
    )
]

if __name__ == "__main__":
    torch.backends.cudnn.allow_tf32 = False
    measure(IMAGES + VOLUMES + SEQUENCES, (torch.float32,), 150_000_000)
