"""Cases that were made of PyTorch's own database of operators (``make_samples.py``), read back.

A call is kept as what it is made of: a tensor by its shape, type and how it is filled; everything
else by its value. A machine that measures needs no more than PyTorch.
"""

from __future__ import annotations

import json
import lzma
from functools import partial
from pathlib import Path
from typing import Any

import torch

from operator_cases.case import Case, Tensors

SAMPLES = Path(__file__).parent / "samples.json.xz"
CASE_DTYPE = "*"
"""Stands for the type that a case is run in."""


def sampled_cases() -> list[Case]:
    """One case for each sample and type."""
    with lzma.open(SAMPLES, "rt") as file:
        samples = json.load(file)
    return [
        Case(sample["name"], dtype, partial(_build, sample))
        for sample in samples
        for dtype in sample["dtypes"]
    ]


def _build(sample: dict[str, Any], tensors: Tensors) -> tuple[Any, ...]:
    function, kwargs = function_named(sample["function"]), decoded(sample["kwargs"], tensors)
    args = decoded(sample["args"], tensors)
    return lambda *values: function(*values[:-1], **values[-1]), *args, kwargs


def function_named(path: str) -> Any:
    """The function of a path that begins at torch, such as nn.functional.gelu; None where there is
    none.
    """
    function: Any = torch
    for part in path.split("."):
        function = getattr(function, part, None)
    return function


def decoded(value: Any, tensors: Tensors) -> Any:
    """An argument as ``encoded`` (``make_samples.py``) wrote it."""
    if isinstance(value, list):
        return [decoded(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return _tensor(content, tensors)
    if kind == "tuple":
        return tuple(decoded(part, tensors) for part in content)
    if kind == "dict":
        return {name: decoded(part, tensors) for name, part in content.items()}
    if kind == "slice":
        return slice(*content)
    if kind == "complex":
        return complex(*content)
    if kind == "ellipsis":
        return ...
    if content == CASE_DTYPE:
        return tensors.dtype
    return getattr(torch, content)


def _tensor(spec: dict[str, Any], tensors: Tensors) -> Any:
    dtype = tensors.dtype if spec["dtype"] == CASE_DTYPE else getattr(torch, spec["dtype"])
    value = _filled(spec["shape"], spec["fill"], dtype, tensors)
    if spec.get("order"):
        value = value.permute(spec["order"])
    if spec["grad"] and (dtype.is_floating_point or dtype.is_complex):
        value = value.detach().requires_grad_()
    return value


def _filled(shape: list[int], fill: Any, dtype: Any, tensors: Tensors) -> Any:
    kind, *numbers = fill
    if kind == "numbers":
        return _repeated(torch.tensor(numbers[0]), shape).to(dtype).to(tensors.device)
    if kind == "sorted":
        return _repeated(torch.tensor(numbers[0]), shape).sort()[0].to(dtype).to(tensors.device)
    if kind == "mask":
        return tensors.mask(*shape, share=numbers[0]).to(dtype)
    if kind == "positive":
        return tensors.positive(*shape, dtype=dtype).detach()
    if kind == "regular":
        return tensors.regular(*shape, dtype=dtype).detach()
    low, high = numbers
    real = dtype if dtype.is_floating_point else torch.float32
    value = torch.rand(shape, device=tensors.device, dtype=real).mul_(high - low).add_(low)
    return value.to(dtype)


def _repeated(numbers: Any, shape: list[int]) -> Any:
    """A few numbers, over and over, in a shape."""
    count = 1
    for size in shape:
        count *= size
    if not count:
        return torch.zeros(shape, dtype=numbers.dtype)
    times = -(-count // numbers.numel())
    return numbers.repeat(times)[:count].view(shape)
