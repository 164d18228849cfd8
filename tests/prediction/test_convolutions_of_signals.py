"""Workspaces of signals, of padded images and of kernels with a stride, against what an H200 asked for
(PyTorch 2.11, cuDNN 9.19; signal_layers.json.xz and padded_layers.json.xz in benchmarks/prediction).
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

MEASURED = Path(__file__).parents[2] / "benchmarks/prediction"
FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
HEADERS, NOTHING = 2048, 400
"""Bytes beside copies, which are not predicted; and what stands for nothing."""
EVERY = 16
"""Rows of a file of which one is looked at."""


def convolution(
    images: int,
    inputs: int,
    outputs: int,
    sides: tuple[int, ...],
    kernel: int,
    stride: int,
    padding: int,
    dtype: torch.dtype = FLOAT32,
    *,
    is_last: bool = False,
) -> Any:
    """A convolution of signals or images without values."""
    from vramlens.prediction.kernels.convolutions.convolution import Convolution

    def empty(*shape: int) -> torch.Tensor:
        layout = torch.channels_last if is_last else torch.contiguous_format
        return torch.empty(shape, device="meta", dtype=dtype, memory_format=layout)

    results = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
    tensor, output = empty(images, inputs, *sides), empty(images, outputs, *results)
    weight = empty(outputs, inputs, *[kernel] * len(sides))
    return Convolution(tensor, weight, output, stride, 1, is_transposed=False)


@pytest.mark.parametrize(
    ("sizes", "dtype", "measured"),
    [
        ((512, 1024, 1024, (96,), 1, 1, 0), FLOAT32, 2_147_483_648),  # a sum for each signal
        ((128, 640, 1280, (336,), 1, 1, 0), FLOAT32, 419_430_400),
        ((48, 32, 64, (2048,), 1, 1, 0), FLOAT32, 0),
        ((128, 192, 192, (200,), 1, 1, 0), FLOAT32, 45_613_615),  # copies, and tiles in 24 parts
        ((24, 64, 64, (3000,), 3, 1, 1), FLOAT32, 39_076_555),  # 44 sums of three tiles
        ((128, 128, 32, (32, 32), 3, 1, 1), FLOAT32, 708_837_376),  # transforms: vqvae2
        ((64, 64, 64, (20, 20), 3, 1, 1), FLOAT32, 77_856_768),
        ((128, 32, 128, (64, 64), 1, 1, 0), FLOAT32, 2_097_152),  # a sum for each image: vqvae2
    ],
)
def test_gradients_of_weights(sizes: tuple[Any, ...], dtype: torch.dtype, measured: int) -> None:
    call = convolution(*sizes, dtype)
    predicted = call.bytes_of_weight_gradient
    assert abs((0 if predicted == NOTHING else predicted) - measured) <= 0.03 * call.own_bytes


def test_plans_that_are_tried_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    call = convolution(128, 128, 32, (32, 32), 3, 1, 1)
    assert call.bytes_of_weight_gradient < 2 * call.own_bytes


@pytest.mark.parametrize(
    ("sizes", "measured"),
    [
        ((128, 64, 128, (128, 128), 4, 2, 1), 537_395_216),  # written as it lies: vqvae2
        ((128, 128, 64, (64, 64), 4, 2, 1), 302_514_323),  # copies of all
    ],
)
def test_results(sizes: tuple[Any, ...], measured: int) -> None:
    assert abs(convolution(*sizes).bytes_of_result - measured) <= HEADERS


def measured_signals() -> Iterator[tuple[Any, list[int]]]:
    for dtype, _, images, inputs, outputs, length, padding, kernel, stride, *asked in rows_of(
        "signal_layers"
    ):
        sizes = images, inputs, outputs, (length,), kernel, stride, padding
        yield convolution(*sizes, dtype_named(dtype)), asked


def measured_images() -> Iterator[tuple[Any, list[int]]]:
    for dtype, is_last, images, inputs, outputs, height, width, *rest in rows_of("padded_layers"):
        padding, kernel, stride, *asked = rest
        sizes = images, inputs, outputs, (height, width), kernel, stride, padding
        yield convolution(*sizes, dtype_named(dtype), is_last=is_last), asked


@pytest.mark.parametrize(
    ("measured", "least_shares"),
    [  # results, gradients of inputs and of weights
        (measured_signals, (0.86, 0.87, 0.75)),
        (measured_images, (0.84, 0.89, 0.72)),
    ],
)
def test_most_are_within_a_twentieth(measured: Any, least_shares: tuple[float, ...]) -> None:
    near, count = [0, 0, 0], 0
    for call, asked in measured():
        predicted = (
            call.bytes_of_result,
            call.bytes_of_input_gradient,
            call.bytes_of_weight_gradient,
        )
        room = 0.05 * call.own_bytes + 2**19
        for at, (size, truth) in enumerate(zip(predicted, asked, strict=True)):
            near[at] += abs(size - truth) <= room
        count += 1
    shares = [right / count for right in near]
    assert all(share >= least for share, least in zip(shares, least_shares, strict=True)), shares


def rows_of(name: str) -> list[Any]:
    content = (MEASURED / f"{name}.json.xz").read_bytes()
    return json.loads(lzma.decompress(content))["rows"][::EVERY]


def dtype_named(name: str) -> torch.dtype:
    return getattr(torch, name.removeprefix("torch."))
