"""What cuDNN asks for: recurrent layers of few units with few and many samples, and convolutions in groups.

    python few_units_groups.py FILE.json

A minute on an H200.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import torch
from recurrent_inputs import measured
from sweep import convolution
from torch import nn

KINDS = tuple(itertools.product((nn.LSTM, nn.GRU), (torch.float32, torch.bfloat16, torch.float16)))
UNITS = (32, 64, 96, 128, 160, 192, 224, 256)
SEQUENCES = (
    *((24, batch) for batch in (8, 64, 96, 128, 256, 512)),
    *((168, batch) for batch in (16, 64, 128, 384)),
)
"""Steps, and samples."""
GROUPS = ((1, 24), (16, 4), (16, 32))
"""Images, and groups of their channels."""


def recurrent() -> list[dict[str, Any]]:
    """One row a layer, with the bytes of its workspaces in the forward pass."""
    rows = []
    for (kind, dtype), units, inputs, layers, both, (steps, batch) in itertools.product(
        KINDS, UNITS, (64, 128), (1, 2), (False, True), SEQUENCES
    ):
        layer = kind(inputs, units, layers, bidirectional=both).cuda().to(dtype)
        x = torch.randn(steps, batch, inputs, device="cuda", dtype=dtype)
        facts = {"packed": False, "steps": steps, "batch": batch, "rows": steps * batch}
        rows.append(measured(layer, x, **facts))
    return rows


def grouped() -> list[dict[str, Any]]:
    """One row a convolution of 3 x 3, as ``sweep.convolution`` has it."""
    rows = []
    for dtype, (batch, groups), each, size, part, last in itertools.product(
        (torch.float32, torch.bfloat16),
        GROUPS,
        (8, 32, 64, 128),
        (8, 32, 96),
        (1, 2),
        (False, True),
    ):
        if batch * groups * each * size * size <= 1 << 26:
            shape = (batch, groups * each, groups * each // part, size, 3, 1, 1, groups)
            rows.append(convolution(dtype, shape, last))
    return rows


def main() -> None:
    answer = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "cudnn": torch.backends.cudnn.version(),
        "layers": recurrent(),
        "conv": grouped(),
    }
    with open(sys.argv[1], "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
