"""What each strategy does to a GPT of 170 million parameters in float32, on the GPU that is here.

    python benchmarks/strategies.py FOLDER [REPEATS [NAME ...]]

12 layers, width 1024, batch of 16 sequences of 512 tokens. Writes strategies.txt (the page),
strategies.svg (the figure) and strategies.json (all figures) into FOLDER, and prints the page.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

import torch
from gpt import GPT
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, LAYERS, HEADS, BATCH, LENGTH = 16_384, 1024, 12, 16, 16, 512
NAMES = [
    "default", "empty_cache", "expandable", "split", "checkpoint", "checkpoint_half", "bf16", "fp16", "offload",
    "in_backward", "foreach_off", "fused", "eight_bit", "chunked_loss", "channels_last", "bf16+fused",
    "bf16+checkpoint", "bf16+split", "checkpoint+split", "bf16+fused+chunked_loss", "compile", "bf16+compile",
]  # fmt: skip
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def model_fn() -> nn.Module:
    with torch.device(DEVICE):
        return GPT(VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, tied=True)


def make_batch(size: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (size, LENGTH), device=DEVICE)


def loss_fn(model: Any, ids: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(ids).view(-1, VOCABULARY), ids.view(-1))


def optimizer_fn(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def main() -> None:
    from vramlens.recovery import strategies
    from vramlens.whole_file import whole_file

    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    began = time.monotonic()
    table = strategies(
        model_fn, make_batch, loss_fn, optimizer_fn, batch=BATCH, budget="8GiB", names=sys.argv[3:] or NAMES,
        repeats=int(sys.argv[2]) if len(sys.argv) > 2 else 2,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    page = (
        f"{table}\n\n{name}, torch {torch.__version__}, {time.monotonic() - began:.0f} s in all\n"
    )
    with whole_file(os.path.join(folder, "strategies.txt")) as text:
        text.write(page.encode())
    table.figure(os.path.join(folder, "strategies.svg"))
    found = {
        "device": name,
        "torch": torch.__version__,
        "rows": [asdict(row) for row in table.rows],
    }
    with whole_file(os.path.join(folder, "strategies.json")) as text:
        text.write(json.dumps(found, indent=1).encode())
    print(page)


if __name__ == "__main__":
    main()
