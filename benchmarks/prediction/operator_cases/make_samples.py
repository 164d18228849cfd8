"""Makes ``samples.json.xz`` of PyTorch's own database of operators (op_db), with larger inputs.

    PYTHONPATH=.. python make_samples.py     (needs expecttest, as PyTorch's tests do)

The samples are small. Of each operator some are taken whose sizes can be multiplied until the
largest tensor has a few MiB: all sizes, those of one length, or those of one place. What fails so
is kept as small as it is: whether it is refused is seen all the same.
"""

from __future__ import annotations

import itertools
import json
import lzma
import math
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from torch.utils._pytree import tree_leaves

from operator_cases.case import Tensors
from operator_cases.pool import answers
from operator_cases.samples import CASE_DTYPE, SAMPLES, decoded, function_named

_TARGETS = (2 << 20, 1 << 19, 1 << 17)
"""Numbers in the largest tensor, tried in this order."""
_MOST_BYTES, _LEAST_BYTES = 96 << 20, 1 << 20
_PATIENCE_S, _MOST_SECONDS = 90, 2.0
_MOST_SAMPLES, _KEPT = 24, 2
_MEMORY = 7 << 30
_FEW_NUMBERS = 4096
_LEFT_OUT = ("jiterator", "_refs", "item", "empty")
_TYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


class NotEncoded(Exception):
    """An argument that cannot be written down."""


def encoded(value: Any, dtype: Any) -> Any:
    """An argument in plain values; a tensor by its shape, type and filling."""
    if isinstance(value, torch.Tensor):
        return {"tensor": _encoded_tensor(value, dtype)}
    if isinstance(value, tuple):
        return {"tuple": [encoded(part, dtype) for part in value]}
    if isinstance(value, list):
        return [encoded(part, dtype) for part in value]
    if isinstance(value, dict):
        return {"dict": {name: encoded(part, dtype) for name, part in value.items()}}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, torch.dtype):
        return {"torch": CASE_DTYPE if value is dtype else str(value).removeprefix("torch.")}
    if isinstance(value, (torch.memory_format, torch.layout)):
        return {"torch": str(value).removeprefix("torch.")}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise NotEncoded(type(value).__name__)


def _encoded_tensor(tensor: torch.Tensor, dtype: Any) -> dict[str, Any]:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise NotEncoded(str(tensor.layout))
    is_open = tensor.dtype is dtype and dtype is torch.float32
    spec = {
        "shape": list(tensor.shape),
        "dtype": CASE_DTYPE if is_open else str(tensor.dtype).removeprefix("torch."),
        "fill": _fill_of(tensor),
        "grad": tensor.requires_grad,
    }
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    if order != sorted(order) and tensor.numel() > 1:
        spec["shape"] = [tensor.shape[dim] for dim in order]
        spec["order"] = [order.index(dim) for dim in range(tensor.dim())]
    return spec


def _fill_of(tensor: torch.Tensor) -> list[Any]:
    content = tensor.detach()
    if not tensor.numel():
        return ["range", 0.0, 1.0]
    if tensor.dtype is torch.bool:
        return ["mask", round(content.float().mean().item(), 3)]
    if not (tensor.is_floating_point() or tensor.is_complex()):
        if tensor.numel() > _FEW_NUMBERS:
            raise NotEncoded("many integers")
        numbers = content.flatten().tolist()
        is_sorted = tensor.dim() == 1 and numbers == sorted(numbers) and len(numbers) > 1
        return ["sorted" if is_sorted else "numbers", numbers]
    if tensor.is_complex():
        return ["range", -1.0, 1.0]
    if tensor.numel() == 1:
        return ["numbers", content.flatten().tolist()]
    if tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2]:
        is_symmetric = torch.allclose(content, content.mT, atol=1e-4)
        return ["positive" if is_symmetric else "regular"]
    finite = content[content.isfinite()]
    if not finite.numel():
        return ["range", -1.0, 1.0]
    return ["range", round(finite.min().item(), 3), round(finite.max().item(), 3)]


def enlarged(call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A call with larger tensors, in several ways, the best first."""
    shapes = [spec["shape"] for spec in _specs(call)]
    if not shapes:
        return
    largest = max(shapes, key=lambda shape: (math.prod(shape), len(shape)))
    count = math.prod(largest)
    if not count:
        return
    for target in _TARGETS:
        if count * 2 > target:
            continue
        long_sizes = {size for shape in shapes for size in shape if size > 1}
        choices = [long_sizes, {largest[0]}, {largest[-1]}] if largest else []
        for sizes in choices:
            powers = sum(size in sizes for size in largest)
            if powers:
                factor = int((target / count) ** (1 / powers))
                yield _multiplied(call, sizes, factor)
        for place in (0, -1):
            yield _multiplied_at(call, len(largest), place, target // count)


def _specs(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        if "tensor" in value:
            return [value["tensor"]]
        return [spec for part in value.values() for spec in _specs(part)]
    if isinstance(value, list):
        return [spec for part in value for spec in _specs(part)]
    return []


def _multiplied(call: dict[str, Any], sizes: set[int], factor: int) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(call))
    for spec in _specs(copy):
        spec["shape"] = [size * factor if size in sizes else size for size in spec["shape"]]
    return copy


def _multiplied_at(call: dict[str, Any], dims: int, place: int, factor: int) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(call))
    for spec in _specs(copy):
        if dims and len(spec["shape"]) == dims and not spec.get("order"):
            spec["shape"][place] *= factor
    return copy


def is_valid(call: dict[str, Any]) -> bool:
    """Whether a call runs on the CPU, quickly, and returns neither too much nor nothing."""
    torch.manual_seed(0)
    function, tensors = function_named(call["function"]), Tensors("cpu", "float32")
    args, kwargs = decoded(call["args"], tensors), decoded(call["kwargs"], tensors)
    began = time.monotonic()
    result = function(*args, **kwargs)
    if time.monotonic() - began > _MOST_SECONDS:
        return False
    leaves = [
        leaf for leaf in tree_leaves((result, args, kwargs)) if isinstance(leaf, torch.Tensor)
    ]
    size = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
    return _LEAST_BYTES <= size <= _MOST_BYTES


def path_of(operator: Any) -> str | None:
    """The path of an operator's function from torch; None where the database has one of its own."""
    for path in (operator.name, f"Tensor.{operator.name}"):
        function = function_named(path)
        if not callable(function):
            continue
        is_method = path.startswith("Tensor.")
        if is_method or function is operator.op or _name(function) == _name(operator.op):
            return path
    return None


def _name(function: Any) -> str:
    return getattr(function, "__name__", "")


def samples_of(operator: Any) -> list[dict[str, Any]]:
    """Some calls of an operator, larger where that is possible."""
    path = path_of(operator)
    if path is None or operator.name.startswith(_LEFT_OUT):
        return []
    supported = operator.supported_dtypes("cpu")
    dtype = next((dtype for dtype in _TYPES if dtype in supported), None)
    if dtype is None:
        return []
    has_grad = operator.supports_autograd and dtype.is_floating_point
    large, small, forms = [], [], set()
    samples = operator.sample_inputs("cpu", dtype, requires_grad=has_grad)
    for sample in itertools.islice(samples, _MOST_SAMPLES):
        try:
            call = {
                "function": path,
                "args": encoded([sample.input, *sample.args], dtype),
                "kwargs": encoded(sample.kwargs, dtype),
            }
        except NotEncoded:
            continue
        form = _form(call)
        if form in forms:
            continue
        bigger = next((other for other in enlarged(call) if _is_valid_safely(other)), None)
        if bigger is None:
            small.append(call)
            continue
        forms.add(form)
        large.append(bigger)
        if len(large) >= _KEPT:
            break
    variant = f"{operator.name}.{operator.variant_test_name}".rstrip(".")
    types = _types_of(operator, dtype)
    return [
        {"name": f"db.{variant}/{number}", "dtypes": types if number == 0 else types[:1], **call}
        for number, call in enumerate(large or small[:1])
    ]


def _form(call: dict[str, Any]) -> str:
    """What a call looks like without its sizes: one of each form is enough."""
    dims = [len(spec["shape"]) for spec in _specs(call)]
    return f"{dims} {sorted(call['kwargs']['dict'])}"


def _types_of(operator: Any, dtype: Any) -> list[str]:
    if dtype is not torch.float32:
        return ["float32"]
    has_halves = torch.bfloat16 in operator.supported_dtypes("cuda")
    return ["float32", "bfloat16"] if has_halves else ["float32"]


def _is_valid_safely(call: dict[str, Any]) -> bool:
    try:
        return is_valid(call)
    except (Exception, SystemError):
        return False


def main() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    def worker() -> Any:
        torch.set_num_threads(1)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        return lambda operator: {"samples": samples_of(operator)}

    made: dict[int, list[dict[str, Any]]] = {}
    for number, answer in answers(op_db, worker, 2, _PATIENCE_S, 3600):
        made[number] = answer.get("samples", [])
        if "error" in answer:
            print(f"{op_db[number].name}: {answer['error']}")
    samples = [sample for number in sorted(made) for sample in made[number]]
    with lzma.open(SAMPLES, "wt") as file:
        json.dump(samples, file, separators=(",", ":"))
    missing = [op_db[number].name for number, calls in made.items() if not calls]
    print(f"{len(samples)} samples; without one: {' '.join(sorted(missing))}")


if __name__ == "__main__":
    main()
