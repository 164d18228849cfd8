"""Workspaces of weights' gradients against what an H200 asked for (PyTorch 2.11, cuDNN 9.19).

All figures are from weight_gradients.json.xz in benchmarks/prediction, if nothing else is said.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

FLOAT32, BFLOAT16 = torch.float32, torch.bfloat16
HEADERS = 2048
"""Bytes beside partial sums, which are not predicted."""


def gradient(
    images: int,
    inputs: int,
    outputs: int,
    side: int,
    kernel: int,
    stride: int,
    dtype: torch.dtype,
    *,
    is_last: bool,
) -> list[Any]:
    """What ``aten.convolution_backward`` is called with for the weight's gradient alone."""

    def empty(*shape: int) -> torch.Tensor:
        layout = torch.channels_last if is_last else torch.contiguous_format
        return torch.empty(shape, device="meta", dtype=dtype, memory_format=layout)

    padding = kernel // 2 if kernel % 2 else (kernel - stride) // 2
    result_side = (side + 2 * padding - kernel) // stride + 1
    output = empty(images, outputs, result_side, result_side)
    tensor, weight = empty(images, inputs, side, side), empty(outputs, inputs, kernel, kernel)
    options = [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1
    return [output, tensor, weight, None, *options, [False, True, False]]


def asked(*sizes: int, dtype: torch.dtype, is_last: bool) -> int:
    """Bytes of the predicted workspace."""
    from vramlens.prediction.kernels.convolutions.convolution import Convolution

    args = gradient(*sizes, dtype=dtype, is_last=is_last)
    return Convolution.of_backward(args).bytes_of_weight_gradient


@pytest.mark.parametrize(
    ("sizes", "measured"),
    [  # images, channels of image and result, side, kernel, stride
        ((48, 64, 64, 96, 3, 1), 228_704_935),  # 14 parts of nine quarters of a tile
        ((192, 64, 128, 64, 3, 1), 608_535_263),  # five tiles of two places of the kernel
        ((192, 128, 128, 40, 3, 1), 323_420_839),
        ((16, 128, 128, 32, 3, 1), 25_625_255),  # of few results half as many parts
        ((16, 128, 256, 64, 3, 1), 110_101_159),
        ((512, 512, 512, 14, 3, 1), 429_130_479),  # 11 parts of each of the last round's tiles
        ((24, 512, 512, 20, 3, 1), 57_410_287),
        ((24, 320, 320, 80, 3, 1), 401_228_503),  # halves of tiles
        ((16, 192, 192, 128, 3, 1), 411_320_831),  # laid one after the other
        ((8, 448, 448, 128, 3, 1), 476_987_408),  # no parts
        ((96, 576, 192, 40, 3, 1), 480_035_375),
        ((12, 160, 160, 160, 3, 1), 401_510_544),  # eight sums as large as the weight
        ((64, 32, 32, 64, 3, 1), 71_160_983),
        ((24, 32, 32, 256, 3, 1), 404_492_923),
        ((48, 64, 64, 112, 3, 2), 194_888_359),
        ((192, 128, 128, 56, 2, 2), 394_265_343),
        ((32, 64, 64, 96, 5, 1), 153_453_319),
        ((24, 96, 96, 192, 1, 2), 433_324_767),
        ((2, 320, 320, 160, 3, 1), 309_657_600),  # Winograd's transforms of few images
        ((48, 3, 64, 224, 7, 2), 198_747_280),
        ((16, 96, 96, 16, 1, 2), 0),
    ],
)
def test_tiled_sums_in_tf32(sizes: tuple[int, ...], measured: int) -> None:
    assert abs(asked(*sizes, dtype=FLOAT32, is_last=False) - measured) <= HEADERS


@pytest.mark.parametrize(
    ("sizes", "measured"),
    [
        ((32, 64, 256, 96, 3, 1), 8_520_399),
        ((16, 256, 256, 48, 3, 1), 7_078_479),
        ((2, 384, 384, 256, 3, 1), 3_932_679),
        ((12, 768, 768, 64, 3, 1), 7_864_723),
        ((32, 768, 768, 20, 3, 1), 131),
        ((256, 288, 96, 32, 3, 1), 402_653_492),  # of copies with channels first
        ((48, 160, 160, 64, 3, 1), 259_031_184),
        ((48, 3, 64, 256, 3, 1), 0),
    ],
)
def test_they_are_the_same_with_channels_last(sizes: tuple[int, ...], measured: int) -> None:
    assert abs(asked(*sizes, dtype=FLOAT32, is_last=True) - measured) <= HEADERS


@pytest.mark.parametrize(
    ("sizes", "measured"),
    [
        ((24, 64, 64, 28, 3, 1), 1_917_591),
        ((2, 64, 64, 56, 3, 1), 0),
        ((192, 128, 128, 40, 3, 1), 7_668_375),
        ((96, 128, 128, 8, 3, 1), 0),
        ((192, 512, 512, 7, 3, 1), 6_291_903),  # of many images
        ((16, 512, 512, 192, 3, 1), 0),  # of few
        ((4, 320, 320, 56, 3, 1), 3_146_175),
        ((192, 320, 320, 28, 3, 1), 3_932_895),
    ],
)
def test_tiled_sums_of_halves_with_channels_last(sizes: tuple[int, ...], measured: int) -> None:
    assert abs(asked(*sizes, dtype=BFLOAT16, is_last=True) - measured) <= HEADERS


@pytest.mark.parametrize(
    ("sizes", "measured"),
    [
        ((16, 256, 256, 16, 3, 1), 5_373_968),
        ((24, 256, 256, 48, 3, 1), 74_318_503),
        ((16, 256, 256, 128, 3, 1), 286_130_855),
        ((16, 96, 96, 192, 3, 1), 234_326_695),
        ((16, 64, 64, 224, 3, 2), 130_327_183),
        ((12, 32, 32, 512, 3, 1), 406_703_251),
        ((64, 64, 64, 16, 1, 2), 2_621_456),  # the weight is not copied
        ((64, 4, 16, 28, 3, 2), 1_238_928),
        ((64, 3, 64, 256, 7, 2), 207_498_384),
        ((2, 16, 16, 32, 3, 1), 0),
    ],
)
def test_tiled_sums_of_halves_beside_copies(sizes: tuple[int, ...], measured: int) -> None:
    assert abs(asked(*sizes, dtype=BFLOAT16, is_last=False) - measured) <= HEADERS


def test_a_result_of_four_channels_is_copied_twice() -> None:
    # batches_volumes.json.xz: 768 images in float16 and bfloat16
    sizes = 768, 4, 16, 42, 3, 2
    args = gradient(*sizes, dtype=BFLOAT16, is_last=False)
    copies = 2 * args[1].nbytes + 2 * args[0].nbytes
    assert 0 <= asked(*sizes, dtype=BFLOAT16, is_last=False) - copies < 2**20


@pytest.mark.parametrize(
    ("sizes", "dtype", "measured"),
    [
        ((2, 32, 32, 80, 1, 1), FLOAT32, 786_944),  # whole tiles of 64 x 64
        ((48, 32, 32, 224, 1, 1), FLOAT32, 4_326_352),
        ((96, 96, 96, 56, 1, 1), FLOAT32, 4_326_352),
        ((96, 128, 128, 20, 1, 1), FLOAT32, 4_325_632),
        ((12, 160, 160, 160, 1, 1), FLOAT32, 4_505_856),
        ((48, 64, 64, 32, 1, 1), BFLOAT16, 622_864),
        ((256, 64, 64, 40, 1, 1), BFLOAT16, 2_162_944),
        ((2, 48, 48, 64, 1, 1), BFLOAT16, 74_000),  # an image's channels filled up
        ((24, 128, 128, 28, 1, 1), BFLOAT16, 917_776),
        ((64, 256, 256, 28, 1, 1), BFLOAT16, 3_932_432),
        ((12, 256, 256, 7, 1, 1), BFLOAT16, 0),
    ],
)
def test_pointwise_sums_with_channels_last(
    sizes: tuple[int, ...], dtype: torch.dtype, measured: int
) -> None:
    assert abs(asked(*sizes, dtype=dtype, is_last=True) - measured) <= HEADERS


def test_most_of_all_are_within_their_bounds() -> None:
    """99.4% of all; of every twentieth here."""
    from vramlens.prediction.kernels.convolutions.workspaces import bounds_of_gradients

    path = Path(__file__).parents[2] / "benchmarks/prediction/weight_gradients.json.xz"
    rows = json.loads(lzma.decompress(path.read_bytes()))["rows"][::20]
    within = 0
    for dtype, is_last, *sizes, measured in rows:
        args = gradient(
            *sizes, dtype=getattr(torch, dtype.removeprefix("torch.")), is_last=bool(is_last)
        )
        _, (_, most) = bounds_of_gradients(args)
        within += measured <= most
    assert within / len(rows) > 0.99
