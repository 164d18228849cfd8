"""Workspaces of convolutions against what an H200 asked for (PyTorch 2.11, cuDNN 9.19)."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vramlens.units import MIB

torch = pytest.importorskip("torch")

OPTIONS = [[1], [1], [1], False, [0], 1]


def convolution(
    images: int,
    inputs: int,
    outputs: int,
    sides: tuple[int, ...],
    kernel: int = 3,
    crop: int = 0,
    dtype: torch.dtype = torch.float32,
    *,
    is_last: bool = False,
) -> Any:
    """A convolution whose result is smaller than the image by some rows."""
    from vramlens.prediction.kernels.convolutions.convolution import Convolution

    def empty(*shape: int) -> torch.Tensor:
        layout = torch.channels_last if is_last else torch.contiguous_format
        made = torch.empty(shape, device="meta", dtype=dtype)
        return made.to(memory_format=layout)

    tensor = empty(images, inputs, *sides)
    weight = empty(outputs, inputs, *[kernel] * len(sides))
    output = empty(images, outputs, *[side - crop for side in sides])
    return Convolution.of_backward([output, tensor, weight, None, *OPTIONS])


def test_a_weights_gradient_of_many_images_is_made_of_transforms() -> None:
    # sweep.json.xz in benchmarks/prediction
    call = convolution(256, 32, 32, (31, 31))
    assert call.bytes_of_weight_gradient == 585_138_176


def test_that_of_few_images_is_made_of_copies() -> None:
    # sweep.json.xz in benchmarks/prediction
    call = convolution(96, 64, 64, (48, 48))
    assert abs(call.bytes_of_weight_gradient - 115_458_727) < 200_000
    assert call.most_of_weight_transforms == 0


def test_that_of_images_without_padding_is_made_of_copies() -> None:
    # autumn/drq_sac: its peak allocated leaves no room for transforms
    call = convolution(512, 32, 32, (41, 41), crop=2)
    copies = call.tensor.nbytes + call.weight.nbytes + call.output.nbytes
    assert abs(call.bytes_of_weight_gradient - copies) < 2**20
    assert call.most_of_weight_transforms == 0


def test_that_of_four_channels_asks_for_nothing() -> None:
    # spring/p12_ppo has no room for transforms of 6,144 images of 4 channels
    call = convolution(6144, 4, 16, (84, 84))
    assert call.bytes_of_weight_gradient < 1024
    assert call.most_of_weight_transforms == 0


def test_in_between_it_may_be_either() -> None:
    call = convolution(200, 48, 48, (42, 42))
    assert call.bytes_of_weight_gradient < call.most_of_weight_transforms


def test_a_wide_volumes_result_is_written_as_it_lies() -> None:
    # spring/p05_videomoco: the peak requested, to the byte
    call = convolution(48, 64, 64, (16, 56, 56))
    copied = call.tensor.nbytes + call.weight.nbytes + 16
    assert call.bytes_of_result == copied
    # sweep.json.xz
    narrow = convolution(2, 16, 32, (48, 48, 48), crop=2)
    assert abs(narrow.bytes_of_result - 39_129_104) < 1024


@pytest.mark.parametrize(
    ("images", "inputs", "outputs", "side", "copied_bytes"),
    [  # few_channels.json.xz in benchmarks/prediction
        (12, 128, 1, 256, None),
        (12, 128, 8, 256, 427_966_608),
        (12, 128, 16, 256, None),
        (12, 64, 1, 256, None),
        (12, 64, 64, 256, 404_684_944),
        (12, 64, 128, 256, None),
        (2, 64, 8, 64, None),
        (12, 12, 64, 256, 239_961_119),
        (2, 12, 64, 256, None),
        (2, 12, 1, 256, 8_403_920),
        (12, 3, 32, 256, None),
    ],
)
def test_a_pointwise_weights_gradient_copies_images_of_few_channels(
    images: int, inputs: int, outputs: int, side: int, copied_bytes: int | None
) -> None:
    call = convolution(images, inputs, outputs, (side, side), kernel=1)
    by_image = images * call.weight.nbytes
    asked = call.bytes_of_weight_gradient
    measured, room = (by_image, 0) if copied_bytes is None else (copied_bytes, 8 * MIB // 5)
    assert abs(asked - measured) <= room


@pytest.mark.parametrize(
    ("outputs", "kernel", "result", "gradient"),
    [  # few_channels.json.xz in benchmarks/prediction: 48 images of one channel
        (32, 3, False, False),
        (32, 7, False, False),
        (32, 11, False, False),
        (64, 7, True, False),
        (64, 11, False, False),
        (128, 11, False, True),
    ],
)
def test_an_image_of_one_channel_is_taken_as_it_lies(
    outputs: int, kernel: int, *, result: bool, gradient: bool
) -> None:
    call = convolution(48, 1, outputs, (128, 128), kernel)
    assert (call.bytes_of_result > 1024) == result
    assert (call.bytes_of_weight_gradient > 1024) == gradient


@pytest.mark.parametrize(
    ("images", "inputs", "outputs", "side", "is_transformed"),
    [  # batches_volumes.json.xz in benchmarks/prediction
        (768, 16, 16, 21, True),
        (768, 16, 16, 42, False),
        (6144, 16, 32, 42, True),
        (768, 16, 32, 84, False),
        (3072, 32, 32, 11, True),
        (3072, 32, 32, 42, False),
        (768, 64, 64, 21, False),
    ],
)
def test_small_images_of_few_channels_are_transformed(
    images: int, inputs: int, outputs: int, side: int, *, is_transformed: bool
) -> None:
    call = convolution(images, inputs, outputs, (side, side))
    copies = call.tensor.nbytes + call.output.nbytes + call.weight.nbytes
    assert (call.bytes_of_weight_gradient > 3 * copies) == is_transformed


@pytest.mark.parametrize(
    ("images", "inputs", "outputs", "side", "kernel", "asked"),
    [  # odd_batches.json.xz in benchmarks/prediction
        (1344, 20, 20, 42, 3, 2_006_323_200),
        (1344, 20, 36, 42, 3, 2_884_718_592),
        (1344, 20, 20, 10, 3, 0),
        (256, 24, 24, 28, 3, 0),
        (256, 18, 18, 16, 3, 0),
        (1344, 12, 24, 28, 3, 0),
    ],
)
def test_which_weights_of_large_batches_are_transformed(
    images: int, inputs: int, outputs: int, side: int, kernel: int, asked: int
) -> None:
    call = convolution(images, inputs, outputs, (side, side), kernel)
    copies = call.tensor.nbytes + call.output.nbytes
    if asked:
        assert call.bytes_of_weight_gradient == asked
    elif images == 256 and inputs == 18:
        assert call.bytes_of_weight_gradient > 4 * copies
    else:
        assert call.bytes_of_weight_gradient < 1.1 * copies + 14 * call.weight.nbytes + 1024


@pytest.mark.parametrize(
    ("images", "inputs", "outputs", "side", "asked"),
    [  # odd_batches.json.xz in benchmarks/prediction
        (1344, 20, 20, 42, 469_667_840),
        (1344, 20, 36, 42, 658_231_296),
        (1344, 20, 36, 28, 330_682_368),
        (1344, 36, 36, 21, 170_698_752 + 46_672),
    ],
)
def test_which_input_gradients_are_made_in_tiles(
    images: int, inputs: int, outputs: int, side: int, asked: int
) -> None:
    call = convolution(images, inputs, outputs, (side, side))
    assert call.bytes_of_input_gradient == asked
    assert call.most_of_input_tiles >= asked


def test_results_of_few_channels_are_made_without_copies() -> None:
    # batches_volumes.json.xz in benchmarks/prediction
    assert convolution(768, 16, 32, (42, 42)).bytes_of_result < 1024
    assert convolution(96, 16, 16, (11, 11)).bytes_of_result < 1024
    assert convolution(768, 16, 16, (42, 42)).bytes_of_result > 2**20


def test_an_input_gradient_of_many_numbers_is_made_of_copies() -> None:
    # batches_volumes.json.xz in benchmarks/prediction
    call = convolution(96, 16, 16, (21, 21))
    assert call.bytes_of_input_gradient == call.bytes_of_result == 5_428_240
    assert convolution(96, 32, 32, (11, 11)).bytes_of_input_gradient < 1024


@pytest.mark.parametrize(
    ("inputs", "outputs", "sides", "is_copied"),
    [  # batches_volumes.json.xz in benchmarks/prediction
        (64, 64, (16, 56, 56), False),
        (64, 128, (16, 56, 56), True),
        (256, 256, (32, 32, 32), True),
        (16, 32, (32, 32, 32), True),
        (16, 32, (8, 28, 28), False),
        (32, 64, (64, 64, 64), False),  # a 3-d U-Net's recording, and the next
        (64, 32, (128, 128, 128), True),
    ],
)
def test_which_volumes_results_are_copied(
    inputs: int, outputs: int, sides: tuple[int, ...], *, is_copied: bool
) -> None:
    call = convolution(2, inputs, outputs, sides)
    own = call.tensor.nbytes + call.weight.nbytes + 16
    assert call.bytes_of_result == own + (call.output.nbytes if is_copied else 0)


@pytest.mark.parametrize(
    ("dtype", "images", "inputs", "outputs", "side", "kernel", "asked"),
    [  # odd_channels.json.xz in benchmarks/prediction
        (torch.float32, 3, 61, 60, 50, 3, 3_858_256),
        (torch.float32, 20, 30, 30, 150, 5, 115_302_416),
        (torch.float16, 3, 61, 60, 50, 3, 1_993_744),
        (torch.bfloat16, 20, 30, 30, 150, 5, 57_651_216),
    ],
)
def test_copies_have_their_channels_filled_up(
    dtype: torch.dtype,
    images: int,
    inputs: int,
    outputs: int,
    side: int,
    kernel: int,
    asked: int,
) -> None:
    call = convolution(images, inputs, outputs, (side, side), kernel, dtype=dtype)
    assert call.bytes_of_result == call.bytes_of_input_gradient == asked


@pytest.mark.parametrize(
    ("images", "inputs", "outputs", "sides", "asked"),
    [  # convolution_results.json.xz in benchmarks/prediction
        (6, 64, 64, (128, 7), 0),
        (24, 256, 64, (80, 80), 0),
        (4, 336, 112, (80, 80), 0),
        (96, 160, 160, (40, 14), 0),
        (3, 112, 448, (40, 40), 4_300_816),
        (2, 256, 512, (28, 28), 2_408_464),
        (8, 672, 224, (16, 16), 5_963_792),
    ],
)
def test_points_with_a_stride(
    images: int, inputs: int, outputs: int, sides: tuple[int, int], asked: int
) -> None:
    from vramlens.prediction.kernels.convolutions.convolution import Convolution

    result_sides = [(side + 1) // 2 for side in sides]
    image, weight, result = (
        torch.empty(shape, device="meta")
        for shape in (
            (images, inputs, *sides),
            (outputs, inputs, 1, 1),
            (images, outputs, *result_sides),
        )
    )
    call = Convolution(image, weight, result, stride=2, groups=1, is_transposed=False)
    assert abs(call.bytes_of_result - asked) < 1024


def test_results_with_odd_channels() -> None:
    # odd_channels.json.xz in benchmarks/prediction
    small = convolution(150, 61, 60, (18, 18))
    assert small.bytes_of_result == 12_579_856  # input and weight only
    halves = convolution(20, 12, 24, (18, 18), dtype=torch.float16)
    assert halves.bytes_of_result < 1024
    others = convolution(20, 12, 24, (18, 18), dtype=torch.bfloat16)
    assert others.bytes_of_result < 1024
    assert others.bytes_of_weight_gradient == others.bytes_of_input_gradient == 525_328


@pytest.mark.parametrize(
    ("dtype", "inputs", "outputs", "side", "result", "gradient"),
    [  # network_layers.json.xz in benchmarks/prediction: 32 images
        (torch.float32, 1024, 256, 13, True, False),
        (torch.float32, 1024, 256, 14, False, False),
        (torch.float32, 2048, 512, 13, True, True),
        (torch.float32, 512, 128, 13, False, False),
        (torch.float32, 512, 2048, 7, True, True),
        (torch.float32, 256, 1024, 13, False, False),
        (torch.bfloat16, 256, 1024, 13, True, False),
        (torch.bfloat16, 256, 1024, 14, False, False),
        (torch.bfloat16, 64, 64, 13, False, False),
    ],
)
def test_a_pointwise_kernel_copies_images_of_many_channels(
    dtype: torch.dtype, inputs: int, outputs: int, side: int, *, result: bool, gradient: bool
) -> None:
    call = convolution(32, inputs, outputs, (side, side), kernel=1, dtype=dtype)
    copies = call.tensor.nbytes + call.output.nbytes
    assert call.bytes_of_result == (copies if result else 400)
    assert call.bytes_of_input_gradient == (copies if gradient else 400)


def test_with_channels_last_only_odd_ones_are_copied() -> None:
    # odd_channels.json.xz in benchmarks/prediction
    call = convolution(3, 33, 64, (150, 150), 5, dtype=torch.float16, is_last=True)
    assert call.bytes_of_input_gradient == 5_528_016
    even = convolution(3, 64, 64, (150, 150), 5, dtype=torch.float16, is_last=True)
    assert even.bytes_of_input_gradient < 1024


@pytest.fixture
def without_tf32() -> Iterator[None]:
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.usefixtures("without_tf32")
@pytest.mark.parametrize(
    ("call", "of_result", "of_input", "of_weight"),
    [  # without_tf32.json.xz in benchmarks/prediction
        ((10, 64, 64, (64, 64), 3), 0, 28_966_912, 47_775_744),
        ((10, 64, 64, (37, 37), 5), 0, 0, 37_380_096),
        ((10, 36, 36, (300, 300), 5), 0, 11_907_072, None),
        ((10, 3, 64, (64, 64), 3), 0, 0, 0),
    ],
)
def test_without_tf32_nothing_is_copied(
    call: tuple[Any, ...], of_result: int, of_input: int, of_weight: int | None
) -> None:
    told = convolution(*call)
    assert abs(told.bytes_of_result - of_result) <= 400
    assert abs(told.bytes_of_input_gradient - of_input) <= 400
    assert of_weight is None or abs(told.bytes_of_weight_gradient - of_weight) <= 400


@pytest.mark.usefixtures("without_tf32")
@pytest.mark.parametrize(
    ("call", "of_weight"),
    [  # without_tf32.json.xz in benchmarks/prediction
        ((2, 16, 32, (32, 32, 32), 3), 12_638_224),
        ((8, 32, 32, (8, 28, 28), 3), 0),
        ((2, 64, 64, (8, 28, 28), 3), 6_864_912),
        ((8, 64, 64, (32, 32, 32), 1), 134_217_744),
        ((2, 64, 64, (32, 32, 32), 1), 0),
    ],
)
def test_most_volumes_without_tf32_are_copied_for_the_weights_gradient(
    call: tuple[Any, ...], of_weight: int
) -> None:
    told = convolution(*call).bytes_of_weight_gradient
    assert abs(told - of_weight) <= max(400, of_weight // 5000)


@pytest.mark.usefixtures("without_tf32")
def test_a_result_without_tf32_may_be_made_of_transforms() -> None:
    # without_tf32.json.xz in benchmarks/prediction: 10 of 64 channels to 128 have them
    call = convolution(10, 64, 128, (37, 37))
    assert call.bytes_of_result < 1024
    assert call.most_of_result_transforms == 298_745_856


@pytest.mark.parametrize(
    ("images", "inputs", "outputs", "side", "partial_sums"),
    [  # network_layers.json.xz in benchmarks/prediction
        (8, 128, 512, 7, 0),
        (8, 64, 256, 14, 24),
        (8, 64, 256, 28, 66),
        (32, 64, 256, 28, 131),
        (96, 512, 128, 28, 66),
        (32, 96, 384, 56, 44),
        (32, 256, 1024, 14, 16),
        (96, 256, 1024, 28, 33),
        (32, 1024, 512, 14, 8),
        (96, 512, 2048, 14, 8),
    ],
)
def test_a_pointwise_gradient_with_channels_last_is_made_of_partial_sums(
    images: int, inputs: int, outputs: int, side: int, partial_sums: int
) -> None:
    call = convolution(images, inputs, outputs, (side, side), kernel=1, is_last=True)
    assert call.bytes_of_weight_gradient == partial_sums * call.weight.nbytes


@pytest.mark.parametrize(("images", "asked"), [(25, 723_714_064), (75, 2_181_762_607)])
def test_few_channels_in_groups_have_partial_sums(images: int, asked: int) -> None:
    # what each gradient of p13_maml's first weights, of 8 tasks at once, asked for on an H200
    call = in_groups(
        {"shape": [images, 24, 384, 84, 3, 1, 1, 8], "dtype": "torch.float32", "last": False}
    )
    assert abs(call.bytes_of_weight_gradient / asked - 1) < 0.01


def test_convolutions_in_groups() -> None:
    """Of 256 that an H200 ran: within 5% or a MiB. Which algorithm cuDNN takes is not known beforehand."""
    path = Path(__file__).parents[2] / "benchmarks/prediction/few_units_groups.json.xz"
    rows = json.loads(lzma.decompress(path.read_bytes()))["conv"]
    right = {"result": 0, "gradients": 0}
    for row in rows:
        call = in_groups(row)
        gradients = max(call.bytes_of_input_gradient, call.bytes_of_weight_gradient)
        right["result"] += is_near(call.bytes_of_result, row["forward"])
        right["gradients"] += is_near(gradients, row["backward"])
    assert len(rows) == 256
    assert right == {"result": 186, "gradients": 165}


def in_groups(row: dict[str, Any]) -> Any:
    """A convolution that was measured, without values."""
    from vramlens.prediction.kernels.convolutions.convolution import Convolution

    images, inputs, outputs, size, kernel, stride, _, groups = row["shape"]
    form = torch.channels_last if row["last"] else torch.contiguous_format
    tensor, weight, output = (
        torch.empty(sizes, dtype=getattr(torch, row["dtype"][6:]), device="meta").to(
            memory_format=form
        )
        for sizes in (
            (images, inputs, size, size),
            (outputs, inputs // groups, kernel, kernel),
            (images, outputs, size, size),
        )
    )
    return Convolution(tensor, weight, output, stride, groups, is_transposed=False)


def is_near(predicted_bytes: int, requests: list[int]) -> bool:
    """Whether that is near the largest of what was asked for and given back."""
    largest = max((size for size in requests if size > 0 and -size in requests), default=0)
    return abs(predicted_bytes - largest) <= max(0.05 * largest, MIB)


@pytest.mark.parametrize(
    ("images", "inputs", "outputs", "side", "is_written"),
    [  # layers_of_programs.json.xz in benchmarks/prediction
        (4096, 32, 64, 42, True),
        (1024, 16, 64, 16, True),
        (1024, 32, 64, 21, False),
        (256, 32, 64, 84, False),
        (256, 64, 128, 32, True),
        (64, 64, 128, 21, False),
        (1024, 32, 256, 32, True),
        (256, 32, 96, 32, False),
    ],
)
def test_which_results_of_images_are_written_as_they_lie(
    images: int, inputs: int, outputs: int, side: int, *, is_written: bool
) -> None:
    call = convolution(images, inputs, outputs, (side, side))
    copies = call.tensor.nbytes + call.weight.nbytes + 16
    assert call.bytes_of_result == copies + (0 if is_written else call.output.nbytes)


def test_a_thin_image_of_16_bits_is_copied_for_its_weights_gradient() -> None:
    # lightning_conformer_ctc: 595.1 MB on an H200, its spectrograms have one channel
    call = convolution(32, 1, 256, (1601, 80), dtype=torch.bfloat16)
    filled = 8 * call.tensor.nbytes + call.output.nbytes
    assert filled <= call.bytes_of_weight_gradient < 1.01 * filled
    few_results = convolution(8, 2, 32, (16, 16), dtype=torch.bfloat16)
    assert few_results.bytes_of_weight_gradient < 1024


@pytest.mark.parametrize(
    ("inputs", "outputs", "length", "is_by_image"),
    [  # layers_of_programs.json.xz in benchmarks/prediction
        (512, 512, 401, True),
        (512, 1024, 401, True),
        (512, 1024, 251, True),
        (512, 512, 199, False),
        (512, 256, 101, False),
    ],
)
def test_a_signals_weight_gradient_is_a_sum_of_images(
    inputs: int, outputs: int, length: int, *, is_by_image: bool
) -> None:
    call = convolution(8, inputs, outputs, (1, length), kernel=1, dtype=torch.bfloat16)
    by_image = 8 * 4 * call.weight.numel()
    copies = call.tensor.nbytes + call.output.nbytes
    assert call.bytes_of_weight_gradient == (by_image if is_by_image else copies)


def test_volumes_of_few_channels() -> None:
    """``unet3d_ckpt_fp16``'s first layer and head, and the first in bfloat16, which copies nothing."""
    first = convolution(2, 2, 32, (128, 128, 128), dtype=torch.float16)
    own = first.tensor.nbytes + first.weight.nbytes + first.output.nbytes
    assert first.bytes_of_result == own + 16
    in_bfloat16 = convolution(2, 2, 32, (128, 128, 128), dtype=torch.bfloat16)
    assert in_bfloat16.bytes_of_result < 1024
    head = convolution(2, 32, 5, (128, 128, 128), kernel=1, dtype=torch.float16)
    assert head.bytes_of_weight_gradient == head.tensor.nbytes + 8 * head.output.nbytes // 5 + MIB
    small_head = convolution(2, 32, 3, (32, 32, 32), kernel=1)
    assert small_head.bytes_of_weight_gradient < 1024
