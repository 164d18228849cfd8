"""What convolutions of images with few channels ask PyTorch's allocator for.

    python few_channels.py FILE.json

1 x 1 kernels by channels of image and result, images of one and two channels, and results of few.
Requests are in order; negative numbers are what is given back. Half a minute on an H200.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

CHANNELS = (1, 2, 3, 4, 8, 16, 32, 64, 128)
POINTWISE = [  # images, inputs, outputs, sides, kernel, stride
    (images, inputs, outputs, (size, size), 1, 1)
    for images, inputs, outputs, size in itertools.product(
        (2, 12), (3, 12, 16, 32, 64, 128, 256), CHANNELS, (64, 128, 256)
    )
]
THIN = [
    (images, inputs, outputs, (size, size), kernel, stride)
    for images, inputs, outputs, size, kernel, stride in itertools.product(
        (8, 48), (1, 2), (16, 32, 64, 128), (32, 128, 256), (3, 5, 7, 11), (1, 2)
    )
]
FEW_RESULTS = [
    (images, inputs, outputs, (size, size), kernel, 1)
    for images, inputs, outputs, size, kernel in itertools.product(
        (8, 48), (16, 64, 128), (1, 2, 3, 4), (64, 256), (3, 7)
    )
]


def requests(run: Callable[[], Any]) -> list[int]:
    """Bytes that are asked for and given back, in order."""
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(context=None, max_entries=100_000)
    kept = run()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    del kept
    signs = {"alloc": 1, "free_completed": -1}
    return [signs[event["action"]] * event["size"] for event in trace if event["action"] in signs]


def measured(dtype: torch.dtype, shape: Any, *, is_last: bool = False) -> dict[str, Any]:
    """One convolution: its result and both gradients.

    Args:
        is_last: whether the channels of image, weight and result lie last.
    """
    images, inputs, outputs, sides, kernel, stride = shape
    dims = len(sides)
    options = [[stride] * dims, [kernel // 2] * dims, [1] * dims, False, [0] * dims, 1]
    layout = torch.channels_last if is_last else torch.contiguous_format
    image = torch.randn(images, inputs, *sides, device="cuda", dtype=dtype)
    weight = torch.randn(outputs, inputs, *[kernel] * dims, device="cuda", dtype=dtype)
    image, weight = (tensor.contiguous(memory_format=layout) for tensor in (image, weight))
    run, back = torch.ops.aten.convolution, torch.ops.aten.convolution_backward
    result = run(image, weight, None, *options)
    gradient = torch.randn_like(result)
    both = gradient, image, weight, None, *options
    return {
        "dtype": str(dtype),
        "last": is_last,
        "shape": [images, inputs, outputs, list(sides), kernel, stride, kernel // 2],
        "x": image.nbytes,
        "w": weight.nbytes,
        "y": result.nbytes,
        "forward": requests(lambda: run(image, weight, None, *options)),
        "to_input": requests(lambda: back(*both, [True, False, False])),
        "to_weight": requests(lambda: back(*both, [False, True, False])),
    }


def measure(
    shapes: list[Any],
    dtypes: Iterable[torch.dtype],
    most_numbers: int,
    layouts: tuple[bool, ...] = (False,),
) -> None:
    """All of them that are not too large, into the file that the command names.

    Args:
        layouts: whether channels lie last.
    """
    rows = []
    for is_last, dtype, shape in itertools.product(layouts, dtypes, shapes):
        images, inputs, outputs, sides, _, stride = shape
        numbers = images * max(inputs, outputs / stride ** len(sides)) * math.prod(sides)
        if numbers <= most_numbers:
            rows.append(measured(dtype, shape, is_last=is_last))
            torch.cuda.empty_cache()
    facts = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    facts |= {"cudnn": torch.backends.cudnn.version(), "rows": rows}
    with open(sys.argv[1], "w") as file:
        json.dump(facts, file)


if __name__ == "__main__":
    measure(POINTWISE + THIN + FEW_RESULTS, (torch.float32, torch.bfloat16), 500_000_000)
