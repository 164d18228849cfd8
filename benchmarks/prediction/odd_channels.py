"""What convolutions ask PyTorch's allocator for whose channels no power of two divides.

    python odd_channels.py FILE.json

Requests are in order; negative numbers are what is given back. A minute or two on an H200.
"""

from __future__ import annotations

import itertools

import torch
from few_channels import measure

PAIRS = (
    (61, 60),
    (60, 60),
    (36, 36),
    (33, 64),
    (64, 33),
    (30, 30),
    (17, 40),
    (5, 12),
    (12, 24),
    (50, 100),
    (130, 130),
    (65, 1),
    (100, 3),
    (6, 64),
)
IMAGES = [  # images, inputs, outputs, sides, kernel, stride
    (images, inputs, outputs, (size, size), kernel, stride)
    for images, (inputs, outputs), size, (kernel, stride) in itertools.product(
        (3, 20, 150), PAIRS, (18, 50, 150), ((3, 1), (3, 2), (1, 1), (5, 1), (4, 2))
    )
]

if __name__ == "__main__":
    measure(IMAGES, (torch.float32, torch.float16, torch.bfloat16), 150_000_000, (False, True))
