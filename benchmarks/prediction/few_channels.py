"""What convolutions of images with few channels ask PyTorch's allocator for.

    python few_channels.py FILE.json

1 x 1 kernels by channels of image and result, images of one and two channels, and results of few.
Requests are in order; negative numbers are what is given back. Half a minute on an H200.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

CHANNELS = (1, 2, 3, 4, 8, 16, 32, 64, 128)
POINTWISE = [  # images, inputs, outputs, size, kernel, stride
    (*shape, 1, 1)
    for shape in itertools.product((2, 12), (3, 12, 16, 32, 64, 128, 256), CHANNELS, (64, 128, 256))
]
THIN = list(
    itertools.product((8, 48), (1, 2), (16, 32, 64, 128), (32, 128, 256), (3, 5, 7, 11), (1, 2))
)
FEW_RESULTS = [
    (*shape, 1)
    for shape in itertools.product((8, 48), (16, 64, 128), (1, 2, 3, 4), (64, 256), (3, 7))
]
MOST_NUMBERS = 500_000_000


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


def measured(dtype: torch.dtype, shape: Iterable[int]) -> dict[str, Any]:
    """One convolution: its result and both gradients."""
    images, inputs, outputs, size, kernel, stride = shape
    options = [[stride] * 2, [kernel // 2] * 2, [1, 1], False, [0, 0], 1]
    image = torch.randn(images, inputs, size, size, device="cuda", dtype=dtype)
    weight = torch.randn(outputs, inputs, kernel, kernel, device="cuda", dtype=dtype)
    run, back = torch.ops.aten.convolution, torch.ops.aten.convolution_backward
    result = run(image, weight, None, *options)
    gradient = torch.randn_like(result)
    both = gradient, image, weight, None, *options
    return {
        "dtype": str(dtype),
        "shape": [images, inputs, outputs, [size, size], kernel, stride, kernel // 2],
        "x": image.nbytes,
        "w": weight.nbytes,
        "y": result.nbytes,
        "forward": requests(lambda: run(image, weight, None, *options)),
        "to_input": requests(lambda: back(*both, [True, False, False])),
        "to_weight": requests(lambda: back(*both, [False, True, False])),
    }


def main() -> None:
    rows = []
    shapes = POINTWISE + THIN + FEW_RESULTS
    for dtype, shape in itertools.product((torch.float32, torch.bfloat16), shapes):
        images, inputs, outputs, size, _, stride = shape
        if images * max(inputs, outputs / stride**2) * size**2 <= MOST_NUMBERS:
            rows.append(measured(dtype, shape))
            torch.cuda.empty_cache()
    facts = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    facts |= {"cudnn": torch.backends.cudnn.version(), "rows": rows}
    with open(sys.argv[1], "w") as file:
        json.dump(facts, file)


main()
