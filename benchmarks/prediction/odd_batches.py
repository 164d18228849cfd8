"""What convolutions of large batches of images ask PyTorch's allocator for whose channels are few and
no power of two.

    python odd_batches.py FILE.json

Requests are in order; negative numbers are what is given back. A minute or two on an H200.
"""

from __future__ import annotations

import itertools

import torch
from few_channels import measure

PAIRS = (
    (12, 12),
    (12, 24),
    (20, 20),
    (20, 36),
    (24, 24),
    (24, 16),
    (24, 48),
    (28, 28),
    (36, 20),
    (36, 36),
    (40, 40),
    (48, 48),
    (18, 18),
    (30, 60),
)
IMAGES = [  # images, inputs, outputs, sides, kernel, stride
    (images, inputs, outputs, (size, size), kernel, stride)
    for images, (inputs, outputs), size, (kernel, stride) in itertools.product(
        (48, 256, 1344, 4096), PAIRS, (10, 16, 21, 28, 32, 42, 84), ((3, 1), (3, 2), (5, 1))
    )
]

if __name__ == "__main__":
    measure(IMAGES, (torch.float32,), 800_000_000)
