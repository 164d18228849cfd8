"""What layers of everyday programs ask for: recurrent layers of many steps, in training and in inference,
and convolutions of many images, of signals, and of volumes, also transposed.

    python layers_of_programs.py FILE.json

Requests are in order; negative numbers are what is given back. A few minutes on an H200. The file here
holds 419 layers and 2,891 convolutions, drawn from these and from a few sizes between them.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from few_channels import requests
from torch import nn

HALF = torch.float16, torch.bfloat16
KINDS = (
    (nn.LSTM, torch.float32), (nn.LSTM, torch.bfloat16), (nn.LSTM, torch.float16),
    (nn.GRU, torch.float32), (nn.GRU, torch.float16), (nn.RNN, torch.float32),
)  # fmt: skip
WIDTHS = (42, 512), (512, 512), (256, 1024), (96, 256), (640, 320), (64, 128)
"""Numbers of the input and of the state."""
FORMS = [(1, 0.0), *itertools.product((2, 3, 4), (0.0, 0.1))]
SEQUENCES = (16, 8), (50, 256), (190, 64), (48, 1024), (96, 2048), (384, 256), (1000, 64)
"""Steps, and samples."""
PAIRS = (64, 32), (128, 64), (256, 128), (320, 256), (512, 256), (32, 16), (128, 128), (64, 3)
"""Channels of image and result."""
NETWORK_PAIRS = (2, 32), (32, 32), (64, 32), (32, 64), (64, 64), (64, 128), (128, 128), (256, 256)
SIGNAL_PAIRS = (144, 288), (256, 256), (256, 512), (512, 256), (512, 512), (512, 1024), (384, 768)
MOST_BYTES = 2_000_000_000


def recurrent() -> Iterator[dict[str, Any]]:
    """One row a layer, with what it asks for in training and in inference."""
    forms = itertools.product(KINDS, WIDTHS, FORMS, (False, True), (False, True), SEQUENCES)
    for (kind, dtype), (inputs, units), (count, dropout), both, packed, (steps, batch) in forms:
        layer = kind(inputs, units, count, bidirectional=both, dropout=dropout).cuda().to(dtype)
        x = torch.randn(steps, batch, inputs, device="cuda", dtype=dtype)
        lengths = torch.linspace(steps, steps // 4, batch).long()
        given = nn.utils.rnn.pack_padded_sequence(x, lengths) if packed else x
        run = partial(layer, given)
        run()
        row = {
            "kind": kind.__name__, "dtype": str(dtype), "units": units, "layers": count, "both": both,
            "dropout": dropout, "packed": packed, "steps": steps, "batch": batch, "inputs": inputs,
            "rows": int(lengths.sum()) if packed else steps * batch, "forward": requests(run),
        }  # fmt: skip
        layer.eval()
        with torch.no_grad():
            yield {**row, "inference": requests(run)}


def shapes() -> Iterator[tuple[Any, ...]]:
    """Type, images, channels of image and result, sides, kernel, stride, padding, transposed."""
    every = torch.float32, *HALF
    for dtype, images, pair, size in itertools.product(every, (1, 2, 8), PAIRS, (8, 16, 32, 64)):
        yield dtype, images, *pair, (size,) * 3, 2, 2, 0, True
        yield dtype, images, *pair, (size,) * 2, 4, 2, 1, True
    for dtype, images, pair, size in itertools.product(every, (1, 2), NETWORK_PAIRS, (8, 32, 128)):
        yield dtype, images, *pair, (size,) * 3, 3, 1, 1, False
    for dtype, inputs, outputs, size in itertools.product(
        every, (16, 32, 64), (2, 5, 14), (32, 128)
    ):
        yield dtype, 2, inputs, outputs, (size,) * 3, 1, 1, 0, False
    counts = itertools.product((16, 256, 4096), (16, 32, 48, 64, 128), (32, 64, 96, 128, 256))
    for (images, inputs, outputs), size in itertools.product(counts, (10, 16, 21, 32, 42, 84)):
        yield torch.float32, images, inputs, outputs, (size, size), 3, 1, 1, False
    lengths = 50, 101, 199, 251, 401, 602, 750, 1001, 1500
    for dtype, images, pair, length in itertools.product(HALF, (8, 16, 32), SIGNAL_PAIRS, lengths):
        yield dtype, images, *pair, (1, length), 1, 1, 0, False
    for dtype, inputs, outputs, stride in itertools.product(HALF, (1, 2, 3), (32, 64, 256), (1, 2)):
        yield dtype, 32, inputs, outputs, (1601, 80), 3, stride, 1, False


def convolution(shape: tuple[Any, ...]) -> dict[str, Any]:
    """What a convolution, and each of its gradients, ask for."""
    dtype, images, inputs, outputs, sides, kernel, stride, padding, is_transposed = shape
    x = torch.randn(images, inputs, *sides, device="cuda", dtype=dtype)
    channels = (inputs, outputs) if is_transposed else (outputs, inputs)
    kernels = (kernel,) * len(sides)
    weight = torch.randn(*channels, *kernels, device="cuda", dtype=dtype)
    dims = len(sides)
    options = [[stride] * dims, [padding] * dims, [1] * dims, is_transposed, [0] * dims, 1]
    forward = lambda: torch.ops.aten.convolution(x, weight, None, *options)  # noqa: E731
    gradient = torch.randn_like(forward())
    row = {
        "dtype": str(dtype), "images": images, "inputs": inputs, "outputs": outputs, "sides": sides,
        "kernel": kernel, "stride": stride, "padding": padding, "transposed": is_transposed,
        "result": requests(forward),
    }  # fmt: skip
    for name, mask in (("input", [True, False, False]), ("weight", [False, True, False])):
        operands = gradient, x, weight, None
        row[name] = requests(
            partial(torch.ops.aten.convolution_backward, *operands, *options, mask)
        )
    return row


def is_small(shape: tuple[Any, ...]) -> bool:
    """Whether image and result are few enough bytes."""
    dtype, images, inputs, outputs, sides = shape[:5]
    points = images * torch.Size(sides).numel()
    return bool(points * (inputs + 4 * outputs) * dtype.itemsize < MOST_BYTES)


def main() -> None:
    answer = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "cudnn": torch.backends.cudnn.version(),
        "layers": list(recurrent()),
        "convolutions": [convolution(shape) for shape in shapes() if is_small(shape)],
    }
    with open(sys.argv[1], "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
