"""What cuDNN asks for to derive a weight's gradient once more: a convolution whose kernel is as large as the
image (_convolution_double_backward in PyTorch's Convolution.cpp).

    python second_gradients.py measure FILE.json     # a few minutes on an H200
    python second_gradients.py hold                  # the rule against second_gradients.json.xz, without a GPU
"""

from __future__ import annotations

import itertools
import json
import lzma
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

MEASURED = Path(__file__).with_suffix(".json.xz")
MIB = 1 << 20
MOST_BYTES, MOST_PRODUCTS = 3 << 30, 2e13
USUAL = {"dtype": "float32", "tf32": True, "last": False}
WITHOUT_TF32 = {**USUAL, "tf32": False}
HALF = {**USUAL, "dtype": "float16"}
OTHER_KINDS = (WITHOUT_TF32, HALF, {**USUAL, "dtype": "bfloat16"}, {**USUAL, "last": True})
LAYER, POINT, LARGE, UNPADDED, STRIDE = (3, 1, 1), (1, 0, 1), (5, 2, 1), (3, 0, 1), (4, 1, 2)
"""Kernel, padding and stride."""

OF_PROGRAMS = (  # inputs, images, outputs, side, layer
    *((3, 64, 48, 128, LAYER), (48, 64, 48, 128, LAYER), (48, 64, 96, 128, LAYER)),
    *((96, 64, 96, 64, LAYER), (96, 64, 192, 64, LAYER), (192, 64, 192, 32, LAYER)),
    *((384, 64, 384, 16, LAYER), (512, 64, 512, 8, LAYER), (48, 64, 96, 64, POINT)),
    *((96, 64, 192, 32, POINT), (48, 200, 48, 42, LAYER), (48, 200, 48, 21, LAYER)),
    *((48, 200, 48, 10, LAYER), (48, 25, 48, 42, LAYER), (48, 25, 48, 21, LAYER)),
    *((3, 48, 64, 128, LAYER), (64, 48, 64, 128, LAYER), (64, 48, 128, 128, LAYER)),
    *((128, 48, 128, 64, LAYER), (3, 32, 48, 64, LAYER), (48, 32, 48, 64, LAYER)),
    *((3, 50, 96, 80, LAYER), (96, 50, 96, 80, LAYER)),
    *((3, 96, 64, 64, STRIDE), (64, 96, 128, 32, STRIDE)),
)
PAIRS = (
    *((3, 32), (3, 64), (3, 128), (16, 16), (32, 32), (48, 48), (64, 64), (96, 96), (128, 128)),
    *((256, 256), (512, 512), (20, 20), (32, 64), (64, 32), (48, 96), (64, 128), (128, 256)),
    (256, 512),
)
BATCHES = (4, 8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 200, 256)
SIDES = (8, 16, 21, 32, 42, 64, 96, 128, 224)
EDGES = ((48, 48, 64), (16, 16, 21), (3, 32, 64), (3, 32, 21), (64, 64, 64))
BATCHES_OF_EDGES = (
    *(1, 2, 3, 5, 6, 7, 9, 10, 12, 14, 15, 17, 20, 33, 34, 36, 38),
    *(97, 100, 104, 112, 120, 126),
)
OUTPUTS_OF_EDGES = (16, 20, 21, 24, 28, 31, 32, 33, 36, 40, 44, 48, 49, 50, 52, 56, 60, 63)
SIDES_OF_EDGES = (
    *(33, 34, 36, 38, 40, 41, 62, 63, 80, 100, 112, 126, 127, 160, 192, 253, 254, 255, 256),
)

Row = dict[str, Any]


def of_pairs(
    pairs: tuple[tuple[int, int], ...],
    batches: tuple[int, ...],
    sides: tuple[int, ...],
    layer: tuple[int, int, int] = LAYER,
) -> Iterator[tuple[int, ...]]:
    """Shapes of layers with those inputs and outputs."""
    for (inputs, outputs), images, side in itertools.product(pairs, batches, sides):
        yield inputs, images, outputs, side, *layer


def of_all(
    inputs: tuple[int, ...], outputs: tuple[int, ...], *others: Any
) -> Iterator[tuple[int, ...]]:
    """Shapes of layers with any of those inputs and outputs."""
    return of_pairs(tuple(itertools.product(inputs, outputs)), *others)


def cases() -> Iterator[tuple[dict[str, Any], tuple[int, ...]]]:
    """The kind and the shape of each: inputs, images, outputs, side, kernel, padding, stride."""
    named = [(*shape, *layer) for *shape, layer in OF_PROGRAMS]
    few = PAIRS[1::2], BATCHES[2::2], (16, 42, 64, 128)
    shapes = [
        *named,
        *of_pairs(PAIRS, BATCHES, SIDES),
        *(shape for layer in (POINT, LARGE, UNPADDED) for shape in of_pairs(*few, layer)),
    ]
    for kind in OTHER_KINDS:
        yield from ((kind, shape) for shape in (*named, *of_pairs(*few)))
    for inputs, outputs, side in EDGES:
        shapes += of_pairs(((inputs, outputs),), BATCHES_OF_EDGES, (side,))
    shapes += of_all((3, 32, 48, 96, 128, 256), OUTPUTS_OF_EDGES, (64,), (64,))
    shapes += of_all((1, 2, 4, 8, 12, 16, 24, 28, 31, 40, 64, 80, 192, 512), (32, 48), (64,), (64,))
    shapes += of_pairs(((32, 32), (3, 32), (48, 48), (64, 32)), (64,), SIDES_OF_EDGES)
    inputs = (3, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96)
    shapes += of_all(inputs, (8, 12, 16, 20, 24, 28, 32, 48, 64, 96), (24,), (8, 16, 32, 42, 48))
    outputs = (8, 16, 24, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256)
    shapes += of_all((3, 16, 32, 48, 64, 80, 96, 112, 128), outputs, (4, 2), (64,))
    batches = (8, 16, 24, 32, 48, 64, 96, 128)
    shapes += of_all((1, 2, 4), (16, 32, 64, 128), batches, (16, 28, 64, 128))
    batches = (24, 48, 64, 96, 128)
    shapes += of_all((3, 16, 48), (32, 48, 64, 96, 128), batches, (8, 16, 32, 64), LARGE)
    yield from ((USUAL, shape) for shape in shapes)
    inputs = (64, 96, 128, 160, 192, 224, 256, 384)
    halves = [
        *of_all(inputs, (128, 192, 224, 256, 384), (32,), (16, 21, 32, 36, 42, 64)),
        *of_all(
            (64, 128, 256), (64, 128, 256), (128, 160, 200, 224, 256, 384, 512), (8, 16, 21, 32)
        ),
    ]
    yield from ((HALF, shape) for shape in halves)
    inputs, outputs = (8, 32, 96, 128, 256), (20, 32, 48, 64, 96, 128, 256)
    for shape in of_all(inputs, outputs, (16, 24, 64, 96, 128), (8, 12, 16, 24, 32, 42, 64)):
        yield WITHOUT_TF32, shape


def is_small(shape: tuple[int, ...]) -> bool:
    """Whether a card runs it quickly."""
    inputs, images, outputs, side = shape[:4]
    numbers = images * side * side
    is_quick = inputs * outputs * numbers * 9 < MOST_PRODUCTS
    return is_quick and 4 * numbers * max(inputs, outputs) <= MOST_BYTES


def operands(row: Row, device: str) -> tuple[Any, Any]:
    """The layer's input and its result's gradient, turned as autograd turns them."""
    inputs, images, outputs, side, kernel, padding, stride = row["shape"]
    result = (side + 2 * padding - kernel) // stride + 1
    form = torch.channels_last if row["last"] else torch.contiguous_format
    layer_input, gradient = (
        torch.empty(sizes, dtype=getattr(torch, row["dtype"]), device=device)
        .fill_(0.5)
        .to(memory_format=form)
        for sizes in ((images, inputs, side, side), (images, outputs, result, result))
    )
    return layer_input.transpose(0, 1), gradient.transpose(0, 1).contiguous()


def arguments(row: Row, tensor: Any, weight: Any) -> list[Any]:
    """What ``aten.convolution`` is called with."""
    *_, padding, stride = row["shape"]
    return [tensor, weight, None, [1, 1], [padding] * 2, [stride] * 2, False, [0, 0], 1]


def workspace(row: Row) -> int:
    """The bytes that cuDNN asked for beside the result and the copy of the input."""
    torch.backends.cudnn.allow_tf32 = row["tf32"]
    tensor, weight = operands(row, "cuda")
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(context=None, max_entries=10_000)
    result = torch.ops.aten.convolution(*arguments(row, tensor, weight))
    torch.cuda.synchronize()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    signs = {"alloc": 1, "free_completed": -1}
    asked = [signs[event["action"]] * event["size"] for event in trace if event["action"] in signs]
    assert result.nbytes in asked, (row, asked)
    return next((size for size, then in itertools.pairwise(asked) if then == -size), 0)


def measure(path: Path) -> None:
    """Writes one row for each case."""
    rows = []
    for kind, shape in cases():
        if is_small(shape):
            row = {**kind, "shape": shape}
            rows.append({**row, "workspace": workspace(row)})
            torch.cuda.empty_cache()
    answer = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "cudnn": torch.backends.cudnn.version(),
        "rows": rows,
    }
    path.write_text(json.dumps(answer))


def kind_of(row: Row) -> str:
    """In words."""
    kernel, _, stride = row["shape"][4:]
    if kernel == 1 or stride > 1:
        return "of 1 x 1 kernels" if kernel == 1 else "with a stride"
    if row["last"]:
        return "channels last"
    return row["dtype"] + ("" if row["tf32"] else " without TF32")


def told(row: Row) -> tuple[int, int]:
    """The predicted bytes of its workspace, and the most of its transforms."""
    from vramlens.prediction.kernels.convolutions.convolution import Convolution

    torch.backends.cudnn.allow_tf32 = row["tf32"]
    tensor, weight = operands(row, "meta")
    args = arguments(row, tensor.contiguous(), weight)
    call = Convolution.of_forward(args, torch.ops.aten.convolution(*args))
    return call.bytes_of_result, max(call.most_of_result_transforms, call.bytes_of_all_copies)


def hold() -> None:
    """Prints how many are right within 5% or a MiB, and how many are no larger than the range has them."""
    all_of, right, inside = Counter[str](), Counter[str](), Counter[str]()
    for row in json.loads(lzma.decompress(MEASURED.read_bytes()))["rows"]:
        usual, most = told(row)
        kind, asked = kind_of(row), row["workspace"]
        all_of[kind] += 1
        right[kind] += abs(usual - asked) <= max(0.05 * asked, MIB)
        inside[kind] += asked <= most + 8 * MIB
    for kind, count in sorted(all_of.items()):
        print(f"{kind:24} {count:6} {right[kind]:6} right {inside[kind]:6} in the range")
    print(f"{'all':24} {all_of.total():6} {right.total():6} right {inside.total():6} in the range")


if __name__ == "__main__":
    if sys.argv[1:] == ["hold"]:
        hold()
    else:
        measure(Path(sys.argv[2]))
