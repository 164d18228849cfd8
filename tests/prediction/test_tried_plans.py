"""What cuDNN asks for when it tries all plans of a convolution, against what an H200 asked for (PyTorch 2.11, cuDNN
9.19: tried_plans.json.xz in benchmarks/prediction).
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

MEASURED = Path(__file__).parents[2] / "benchmarks/prediction/tried_plans.json.xz"


def plans(row: list[Any]) -> tuple[int, int, int]:
    """The transforms for the result, the input's and the weight's gradient of a measured row."""
    from vramlens.prediction.kernels.convolutions.convolution import Convolution

    name, is_last, images, inputs, outputs, height, width, kernel, stride = row[:9]

    def empty(*shape: int) -> torch.Tensor:
        layout = torch.channels_last if is_last else torch.contiguous_format
        dtype = getattr(torch, name.removeprefix("torch."))
        return torch.empty(shape, device="meta", dtype=dtype, memory_format=layout)

    padding = 1 if kernel == 4 else kernel // 2
    sides = [(side + 2 * padding - kernel) // stride + 1 for side in (height, width)]
    tensor, weight = empty(images, inputs, height, width), empty(outputs, inputs, kernel, kernel)
    output = empty(images, outputs, *sides)
    tried = Convolution(tensor, weight, output, stride, 1, False).bytes_of_tried_transforms
    return tried("forward"), tried("input"), tried("weight")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        # to the byte: a copy of the weight, or of the results, and transforms
        (["torch.float32", False, 1, 8, 8, 4, 4, 3, 1], (168_192, 348_160, 147_968)),
        (["torch.float32", False, 4, 1, 96, 28, 28, 3, 1], (3_345_792, 2_106_368, 4_581_376)),
        (["torch.float32", False, 1, 384, 384, 40, 40, 3, 1], None),
        (["torch.bfloat16", False, 1, 8, 8, 4, 4, 3, 1], (0, 0, 0)),
        (["torch.float32", False, 1, 64, 64, 250, 250, 7, 2], None),
    ],
)
def test_the_bytes_of_transforms(row: list[Any], expected: tuple[int, int, int] | None) -> None:
    if expected is not None:
        assert plans(row) == expected
    else:
        assert max(plans(row)) > 0


def test_most_measured_ones_fit() -> None:
    rows = json.loads(lzma.decompress(MEASURED.read_bytes()))["rows"]
    fitting = larger = count = 0
    for row in rows[::7]:
        for planned, asked in zip(plans(row), row[9:15:2], strict=True):
            if not 0 < planned < 20e9:
                continue
            count += 1
            fitting += abs(planned - asked) <= 0.05 * asked
            larger += asked > 1.05 * planned
    assert count > 1500
    assert fitting >= 0.82 * count
    assert larger <= 0.07 * count


def test_all_plans_are_tried_once_and_only_what_the_card_has_room_for() -> None:
    """Of the images of a shape; the cache is emptied after the trial."""
    from vramlens.cards.known_cards import CARDS
    from vramlens.prediction.kernels.convolutions.convolution import Convolution
    from vramlens.prediction.kernels.convolutions.workspaces import TriedPlans
    from vramlens.prediction.requests.request_log import EMPTY_CACHE, RequestLog

    tensor, weight = (
        torch.empty(shape, device="meta") for shape in ((4, 512, 64, 64), (512, 512, 3, 3))
    )
    call = Convolution(tensor, weight, tensor, 1, 1, False)
    transforms_bytes = call.bytes_of_tried_transforms("forward")
    for card, asked in (("h200", transforms_bytes), ("t4", 1000)):
        log = RequestLog()
        tried = TriedPlans(log, CARDS[card])
        torch.backends.cudnn.benchmark = True
        try:
            for _ in range(2):
                tried.note("forward", call, 1000, (0, 2000))
        finally:
            torch.backends.cudnn.benchmark = False
        assert log.sizes == [asked]
        assert log.kinds.count(EMPTY_CACHE) == 1
