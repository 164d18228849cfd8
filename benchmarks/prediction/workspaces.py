"""What cuDNN and cuSOLVER ask PyTorch's allocator for, over a grid of shapes, on a GPU.

    python workspaces.py FILE.json

Each row: bytes at the peak of one operator, beyond what was there before and what it returns.
None of the shapes is one of the programs' that predictions are held against.
"""

from __future__ import annotations

import itertools
import json
import sys
from functools import partial
from typing import Any

import torch
from torch import nn

BATCH = 6
CHANNELS = ((3, 48), (24, 24), (48, 96), (96, 96), (192, 192), (384, 192), (768, 384))
SIZES = (14, 33, 60, 120)
KERNELS = ((1, 1), (1, 2), (3, 1), (3, 2), (5, 1), (7, 2))
TYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_ELEMENTS = 60_000_000


def beyond(function: Any) -> int:
    """Bytes that an operator asks for beyond its results, the second time that it runs."""
    function()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = function()
    held = torch.cuda.memory_allocated() - before
    peak = torch.cuda.max_memory_allocated() - before
    del result
    return peak - held


def convolution(dtype: Any, inputs: int, outputs: int, size: int, kernel: int, stride: int,
                last: bool, transposed: bool) -> dict[str, Any]:  # fmt: skip
    form = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(BATCH, inputs, size, size, device="cuda", dtype=dtype).to(memory_format=form)
    shape = (inputs, outputs) if transposed else (outputs, inputs)
    weight = torch.randn(*shape, kernel, kernel, device="cuda", dtype=dtype).to(memory_format=form)
    options = [[stride] * 2, [kernel // 2] * 2, [1, 1], transposed, [0, 0], 1]
    forward = lambda: torch.ops.aten.convolution(x, weight, None, *options)  # noqa: E731
    y = forward()
    gradient = torch.randn_like(y)
    backward = torch.ops.aten.convolution_backward
    return {
        "dtype": str(dtype), "inputs": inputs, "outputs": outputs, "size": size, "kernel": kernel,
        "stride": stride, "last": last, "transposed": transposed,
        "x": x.nbytes, "weight": weight.nbytes, "y": y.nbytes,
        "forward": beyond(forward),
        "to_input": beyond(lambda: backward(gradient, x, weight, None, *options, [True, False, False])[0]),
        "to_weight": beyond(lambda: backward(gradient, x, weight, None, *options, [False, True, False])[1]),
    }  # fmt: skip


def convolutions() -> list[dict[str, Any]]:
    rows = []
    for dtype, last, transposed in itertools.product(TYPES, (False, True), (False, True)):
        for (inputs, outputs), size, (kernel, stride) in itertools.product(
            CHANNELS, SIZES, KERNELS
        ):
            if transposed and (kernel, stride) not in ((3, 2), (5, 1)):
                continue
            if (
                BATCH * max(inputs, outputs) * size * size * (4 if transposed else 1)
                > MOST_ELEMENTS
            ):
                continue
            try:
                rows.append(
                    convolution(dtype, inputs, outputs, size, kernel, stride, last, transposed)
                )
            except RuntimeError as error:
                rows.append({"error": str(error)[:80], "size": size, "kernel": kernel})
        torch.cuda.empty_cache()
    return rows


def recurrent() -> list[dict[str, Any]]:
    rows = []
    kinds = (nn.LSTM, nn.GRU, nn.RNN)
    grid = itertools.product(
        kinds, (48, 200), (7, 40), (96, 320), (1, 3), (False, True), (0.0, 0.2)
    )
    for kind, steps, batch, units, layers, both, dropout in grid:
        layer = kind(64, units, layers, bidirectional=both, dropout=dropout if layers > 1 else 0.0)
        layer = layer.cuda()
        x = torch.randn(steps, batch, 64, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        out = layer(x)[0]
        saved = torch.cuda.memory_allocated() - before
        gradient = torch.randn_like(out)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out.backward(gradient)
        rows.append({
            "kind": kind.__name__, "steps": steps, "batch": batch, "units": units,
            "layers": layers, "both": both, "dropout": dropout, "out": out.nbytes,
            "kept": saved, "forward": beyond(partial(layer, x)),
            "backward": torch.cuda.max_memory_allocated() - before,
            "weights": sum(weight.nbytes for weight in layer.parameters()),
        })  # fmt: skip
        del out, gradient
    return rows


def factorizations() -> list[dict[str, Any]]:
    rows = []
    for size, dtype in itertools.product((300, 900, 1700, 3000), (torch.float32, torch.float64)):
        a = torch.randn(size, size, device="cuda", dtype=dtype)
        a = a @ a.T + size * torch.eye(size, device="cuda", dtype=dtype)
        b = torch.randn(size, 5, device="cuda", dtype=dtype)
        factor = torch.linalg.cholesky(a)
        operators = {
            "cholesky": partial(torch.linalg.cholesky, a),
            "cholesky_solve": partial(torch.cholesky_solve, b, factor),
            "triangular": partial(torch.linalg.solve_triangular, factor, b, upper=False),
            "solve": partial(torch.linalg.solve, a, b),
            "inverse": partial(torch.linalg.inv, a),
            "qr": partial(torch.linalg.qr, a),
            "eigh": partial(torch.linalg.eigh, a),
            "svd": partial(torch.linalg.svd, a),
        }
        for name, function in operators.items():
            if size > 1000 and name in ("eigh", "svd"):
                continue
            try:
                rows.append({"operator": name, "size": size, "dtype": str(dtype), "matrix": a.nbytes,
                             "beyond": beyond(function)})  # fmt: skip
            except RuntimeError as error:
                rows.append({"operator": name, "error": str(error)[:80]})
    return rows


def main() -> None:
    torch.backends.cudnn.benchmark = False
    answer = {"torch": torch.__version__, "device": torch.cuda.get_device_name(),
              "cudnn": torch.backends.cudnn.version()}  # fmt: skip
    for name, measure in (("convolutions", convolutions), ("recurrent", recurrent),
                          ("factorizations", factorizations)):  # fmt: skip
        try:
            answer[name] = measure()
        except Exception as error:
            answer[name] = f"{type(error).__name__}: {error}"[:200]
        with open(sys.argv[1], "w") as file:
            json.dump(answer, file)


if __name__ == "__main__":
    main()
