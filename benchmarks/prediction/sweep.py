"""What cuDNN asks PyTorch's allocator for: recurrent layers, padded and packed, and convolutions.

    python sweep.py FILE.json

Requests are in order; negative numbers are what is given back.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

CONVOLUTIONS = (  # batch, inputs, outputs, size, kernel, stride, dilation, groups
    (32, 3, 64, 64, 3, 1, 1, 1), (32, 64, 64, 64, 3, 1, 1, 1), (32, 64, 64, 64, 3, 2, 1, 1),
    (32, 128, 128, 32, 3, 1, 1, 1), (32, 256, 128, 32, 3, 1, 1, 1), (32, 192, 64, 64, 3, 1, 1, 1),
    (16, 96, 96, 128, 3, 1, 1, 1), (16, 192, 192, 64, 3, 1, 1, 1), (64, 64, 128, 32, 4, 2, 1, 1),
    (64, 128, 256, 16, 4, 2, 1, 1), (96, 256, 512, 8, 4, 2, 1, 1), (8, 960, 256, 26, 3, 1, 12, 1),
    (8, 960, 256, 26, 3, 1, 24, 1), (8, 72, 72, 104, 5, 2, 1, 72), (8, 240, 240, 52, 3, 1, 1, 240),
    (8, 960, 160, 26, 1, 1, 1, 1), (8, 16, 64, 208, 1, 1, 1, 1), (32, 256, 256, 28, 3, 1, 1, 32),
    (6, 32, 32, 256, 3, 1, 1, 1), (6, 128, 64, 128, 3, 1, 1, 1), (6, 512, 256, 32, 3, 1, 1, 1),
    (96, 64, 64, 48, 3, 1, 1, 1), (96, 128, 128, 24, 3, 1, 1, 1), (96, 256, 256, 12, 3, 1, 1, 1),
    (96, 512, 512, 6, 3, 1, 1, 1), (96, 3, 64, 192, 7, 2, 1, 1), (4, 256, 256, 80, 3, 1, 1, 1),
    (4, 256, 180, 80, 3, 1, 1, 1), (256, 3, 32, 64, 3, 2, 1, 1), (256, 32, 32, 31, 3, 1, 1, 1),
)  # fmt: skip
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def requests_of(function: Callable[[], Any]) -> list[int]:
    """Bytes that one call asks for and gives back, the second time that it runs."""
    result = function()
    del result
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(
        "all", context=None, max_entries=4000, clear_history=True
    )
    result = function()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(None)
    del result
    return [
        event["size"] if event["action"] == "alloc" else -event["size"]
        for event in events
        if event["action"] in ("alloc", "free_requested")
    ]


def recurrent() -> list[dict[str, Any]]:
    rows = []
    forms = ((1, 0.0), (2, 0.0), (2, 0.3))
    kinds = (
        (nn.LSTM, torch.float32),
        (nn.LSTM, torch.bfloat16),
        (nn.GRU, torch.float32),
    )
    for (kind, dtype), units, (layers, dropout), both, packed, steps, batch in itertools.product(
        kinds, (256, 512), forms, (False, True), (False, True), (64, 190), (24, 64)
    ):
        layer = kind(256, units, layers, bidirectional=both, dropout=dropout).cuda().to(dtype)
        x = torch.randn(steps, batch, 256, device="cuda", dtype=dtype)
        lengths = torch.linspace(steps, steps // 4, batch).long()
        given = nn.utils.rnn.pack_padded_sequence(x, lengths) if packed else x
        row = {
            "kind": kind.__name__, "dtype": str(dtype), "units": units, "layers": layers, "both": both,
            "dropout": dropout, "packed": packed, "steps": steps, "batch": batch, "inputs": 256,
            "rows": int(lengths.sum()) if packed else steps * batch,
            "forward": requests_of(lambda layer=layer, given=given: layer(given)),
        }  # fmt: skip
        rows.append(row)
    return rows


def convolution(dtype: Any, shape: tuple[int, ...], last: bool) -> dict[str, Any]:
    batch, inputs, outputs, size, kernel, stride, dilation, groups = shape
    form = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(batch, inputs, size, size, device="cuda", dtype=dtype)
    weight = torch.randn(outputs, inputs // groups, kernel, kernel, device="cuda", dtype=dtype)
    x, weight = x.to(memory_format=form), weight.to(memory_format=form)
    padding = dilation * (kernel // 2)
    options = [[stride] * 2, [padding] * 2, [dilation] * 2, False, [0, 0], groups]
    forward = lambda: torch.ops.aten.convolution(x, weight, None, *options)  # noqa: E731
    y = forward()
    gradient = torch.randn_like(y)
    backward = lambda: torch.ops.aten.convolution_backward(  # noqa: E731
        gradient, x, weight, None, *options, [True, True, False]
    )
    return {
        "dtype": str(dtype), "shape": shape, "last": last,
        "x": x.nbytes, "w": weight.nbytes, "y": y.nbytes,
        "forward": requests_of(forward), "backward": requests_of(backward),
    }  # fmt: skip


def main() -> None:
    answer = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "cudnn": torch.backends.cudnn.version(),
        "rnn": recurrent(),
        "conv": [
            convolution(*case) for case in itertools.product(TYPES, CONVOLUTIONS, (False, True))
        ],
    }
    with open(sys.argv[1], "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
