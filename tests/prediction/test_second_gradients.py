"""Second gradients of weights against what an H200 asked for (PyTorch 2.11, cuDNN 9.19)."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vramlens.units import MIB

torch = pytest.importorskip("torch")

MEASURED = Path(__file__).parents[2] / "benchmarks/prediction/second_gradients.json.xz"
SHARE = 5
"""One of so many measured rows is held here; ``second_gradients.py hold`` holds them all."""


@pytest.fixture(autouse=True)
def with_tf32() -> Iterator[None]:
    yield
    torch.backends.cudnn.allow_tf32 = True


def second_gradient(row: dict[str, Any]) -> Any:
    """The convolution that was measured, without values."""
    from vramlens.prediction.kernels.convolutions.convolution import Convolution

    torch.backends.cudnn.allow_tf32 = row["tf32"]
    inputs, images, outputs, side, kernel, padding, stride = row["shape"]
    result = (side + 2 * padding - kernel) // stride + 1
    weight_side = side + 2 * padding - stride * (result - 1)
    tensor, weight, output = (
        torch.empty(sizes, dtype=getattr(torch, row["dtype"]), device="meta")
        for sizes in (
            (inputs, images, side, side),
            (outputs, images, result, result),
            (inputs, outputs, weight_side, weight_side),
        )
    )
    return Convolution(tensor, weight, output, 1, 1, is_transposed=False)


def of_layer(inputs: int, images: int, outputs: int, side: int, kernel: int = 3) -> Any:
    """That of a layer in float32 whose result is as large as its image."""
    shape = [inputs, images, outputs, side, kernel, kernel // 2, 1]
    return second_gradient({"dtype": "float32", "tf32": True, "shape": shape})


def test_second_gradients_ask_for_what_they_asked_for_on_a_card() -> None:
    rows = json.loads(lzma.decompress(MEASURED.read_bytes()))["rows"]
    assert len(rows) == 7169
    right = inside = 0
    for row in rows[::SHARE]:
        call, asked = second_gradient(row), row["workspace"]
        right += abs(call.bytes_of_result - asked) <= max(0.05 * asked, MIB)
        most = max(call.bytes_of_all_copies, call.most_of_result_transforms) + 8 * MIB
        inside += asked <= most
    assert (right, inside) == (1400, 1434)


@pytest.mark.parametrize(
    ("inputs", "images", "outputs", "side", "asked"),
    [
        (3, 64, 48, 128, 1_925_971_968),  # gan_r1_resnet
        (48, 64, 48, 128, 3_447_717_888),  # the same: the peak that it requested, to the byte
        (3, 32, 64, 21, 22_274_048),
        (32, 16, 64, 8, 4_980_736),  # transforms of all pairs of channels
        (48, 25, 48, 21, 4_824_592),  # p13_maml
    ],
)
def test_their_workspaces_are_right_to_the_byte(
    inputs: int, images: int, outputs: int, side: int, asked: int
) -> None:
    call = of_layer(inputs, images, outputs, side)
    assert call.bytes_of_result == asked


@pytest.mark.parametrize(
    ("inputs", "images", "outputs", "side"),
    [
        (48, 64, 96, 128),  # gan_r1_resnet
        (64, 48, 64, 128),  # spring/p10_gan
        (96, 50, 96, 80),  # carnival/z14_wgan_gp
        (48, 200, 48, 42),  # spring/p13_maml
    ],
)
def test_many_outputs_and_images_are_copied(
    inputs: int, images: int, outputs: int, side: int
) -> None:
    call = of_layer(inputs, images, outputs, side)
    assert call.bytes_of_result < 1.1 * (call.tensor.nbytes + call.weight.nbytes)
    assert call.most_of_result_transforms == 0


def test_images_near_the_limits_may_be_either() -> None:
    call = of_layer(48, 39, 48, 64)
    assert call.bytes_of_result < call.most_of_result_transforms


def test_images_of_more_than_256_with_their_padding_are_copied() -> None:
    assert of_layer(48, 64, 48, 254).bytes_of_result > 2**30
    call = of_layer(48, 64, 48, 256)
    assert call.bytes_of_result < 1.1 * (call.tensor.nbytes + call.weight.nbytes)
    assert call.most_of_result_transforms == 0


def test_a_layer_with_a_stride_is_copied() -> None:
    shape = [3, 96, 64, 64, 4, 1, 2]  # its convolution has a dilation
    call = second_gradient({"dtype": "float32", "tf32": True, "shape": shape})
    assert call.bytes_of_result < 1.1 * (call.tensor.nbytes + call.weight.nbytes)
    assert call.most_of_result_transforms == 0
