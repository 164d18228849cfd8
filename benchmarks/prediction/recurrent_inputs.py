"""The workspaces of recurrent layers whose input is narrower or wider than their state.

    python recurrent_inputs.py FILE.json

Ten seconds on an H200.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import torch
from sweep import requests_of
from torch import nn

KINDS = ((nn.LSTM, torch.float32), (nn.LSTM, torch.bfloat16), (nn.GRU, torch.float32))
WIDTHS = ((128, 256), (256, 256), (400, 256), (512, 256), (1024, 384), (96, 128), (320, 128))
"""Numbers of the input and of the state."""


def layers() -> list[dict[str, Any]]:
    """One row a layer, with the bytes of its workspace."""
    rows = []
    for (kind, dtype), (inputs, units), count, both, packed, (steps, batch) in itertools.product(
        KINDS, WIDTHS, (1, 2), (False, True), (False, True), ((64, 24), (190, 64))
    ):
        layer = kind(inputs, units, count, bidirectional=both).cuda().to(dtype)
        x = torch.randn(steps, batch, inputs, device="cuda", dtype=dtype)
        lengths = torch.linspace(steps, steps // 4, batch).long()
        given = nn.utils.rnn.pack_padded_sequence(x, lengths) if packed else x
        facts = {"packed": packed, "rows": int(lengths.sum()) if packed else steps * batch}
        rows.append(measured(layer, given, steps=steps, batch=batch, **facts))
    return rows


def measured(layer: nn.RNNBase, given: Any, **facts: int) -> dict[str, Any]:
    """What a layer is, with facts of its input, and the bytes of its workspace."""
    requests = requests_of(lambda: layer(given))
    return {
        "kind": type(layer).__name__, "dtype": str(layer.weight_hh_l0.dtype), "units": layer.hidden_size,
        "layers": layer.num_layers, "both": layer.bidirectional, "inputs": layer.input_size, **facts,
        "workspace": max(size for size in requests if size > 0 and -size in requests),
    }  # fmt: skip


def main() -> None:
    answer = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "cudnn": torch.backends.cudnn.version(),
        "layers": layers(),
    }
    with open(sys.argv[1], "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
