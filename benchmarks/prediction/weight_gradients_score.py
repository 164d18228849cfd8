"""How many of the measured workspaces of weights' gradients are predicted.

    python weight_gradients_score.py

One line for each class of weight_gradients.json.xz, in two halves, and of the older files: type, layout
(and kernel), rows, the share that is right to 2 KiB, and the share that is right within 5% of the tensors'
bytes and half a MiB. Some seconds, without a GPU.
"""

from __future__ import annotations

import json
import lzma
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vramlens.prediction.kernels.convolutions.convolution import Convolution
from vramlens.prediction.kernels.convolutions.filled_up_copies import KERNEL_BYTES

FOLDER = Path(__file__).parent
OLDER = "batches_volumes", "odd_batches", "network_layers", "odd_channels"
EXACT_BYTES, NEAR_BYTES, NEAR_SHARE = 2048, 1 << 19, 0.05


@dataclass(frozen=True)
class Measured:
    """One measured gradient, of images or volumes that are as long in all directions as ``sides``."""

    dtype: torch.dtype
    is_last: bool
    images: int
    channels: tuple[int, int]
    sides: tuple[int, ...]
    kernel: int
    stride: int
    padding: int
    asked: int

    @property
    def call(self) -> Convolution:
        """The same convolution without values."""
        inputs, outputs = self.channels
        kernel = [self.kernel] * len(self.sides)
        shrunk = 2 * self.padding - self.kernel
        results = [(side + shrunk) // self.stride + 1 for side in self.sides]
        tensor = self._empty(self.images, inputs, *self.sides)
        weight = self._empty(outputs, inputs, *kernel)
        result = self._empty(self.images, outputs, *results)
        return Convolution(tensor, weight, result, self.stride, 1, is_transposed=False)

    def _empty(self, *shape: int) -> torch.Tensor:
        layout = torch.channels_last if self.is_last else torch.contiguous_format
        return torch.empty(shape, device="meta", dtype=self.dtype, memory_format=layout)


def new_rows() -> Iterator[tuple[str, Measured]]:
    """Those of weight_gradients.json.xz, in two halves, by kernel and stride."""
    for number, row in enumerate(_read("weight_gradients")["rows"]):
        dtype, is_last, images, inputs, outputs, side, kernel, stride, asked = row
        padding = kernel // 2 if kernel % 2 else (kernel - stride) // 2
        measured = Measured(
            _dtype(dtype), bool(is_last), images, (inputs, outputs), (side, side), kernel, stride,
            padding, asked,
        )  # fmt: skip
        yield f"new half {number % 2}, {kernel}x{kernel} stride {stride}", measured


def older_rows() -> Iterator[tuple[str, Measured]]:
    """Those of older files, few of which the rules were fitted to."""
    for name in OLDER:
        for row in _read(name)["rows"]:
            images, inputs, outputs, sides, kernel, stride, *padding = row["shape"]
            is_last = bool(row.get("last"))
            if row.get("groups", 1) == 1 and _is_counted(sides, row["to_weight"], is_last=is_last):
                yield name, Measured(
                    _dtype(row["dtype"]), is_last, images, (inputs, outputs), tuple(sides), kernel,
                    stride, padding[0] if padding else 0, _asked(row["to_weight"]),
                )  # fmt: skip
    for row in _read("layers_of_programs")["convolutions"]:
        is_plain = not row["transposed"] and (row.get("groups") or 1) == 1
        requests = row.get("weight") or ()
        if is_plain and _is_counted(row["sides"], requests, is_last=bool(row.get("last"))):
            yield "layers_of_programs", Measured(
                _dtype(row["dtype"]), bool(row.get("last")), row["images"],
                (row["inputs"], row["outputs"]), tuple(row["sides"]), row["kernel"], row["stride"],
                row["padding"], _asked(requests),
            )  # fmt: skip


def main() -> None:
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for rows in (new_rows(), older_rows()):
        for name, measured in rows:
            layout = "last" if measured.is_last else "first"
            kind = f"{str(measured.dtype).removeprefix('torch.')}, channels {layout}"
            _count(counts[name, kind], measured)
    for (name, kind), (rows_in_all, exact, near) in sorted(counts.items()):
        shares = f"{exact / rows_in_all:6.1%} {near / rows_in_all:6.1%}"
        print(f"{name:28} {kind:26} {rows_in_all:5} {shares}")


def _count(counted: list[int], measured: Measured) -> None:
    call = measured.call
    predicted = call.bytes_of_weight_gradient
    difference = abs((0 if predicted == KERNEL_BYTES else predicted) - measured.asked)
    counted[0] += 1
    counted[1] += difference <= EXACT_BYTES
    counted[2] += difference <= NEAR_SHARE * call.own_bytes + NEAR_BYTES


def _is_counted(sides: list[int], requests: Any, *, is_last: bool) -> bool:
    """Whether requests are a gradient's, and a workspace where it has one; and channels lie last in
    images only.
    """
    return len(requests) in (1, 3) and not (is_last and len(sides) != 2)


def _asked(requests: list[int]) -> int:
    return requests[1] if len(requests) > 1 else 0


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name.removeprefix("torch."))


def _read(name: str) -> Any:
    return json.loads(lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes()))


if __name__ == "__main__":
    main()
