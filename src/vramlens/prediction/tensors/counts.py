"""Counts of what is there: lengths of sequences that nobody knows are taken as the longest.

A beam search cuts its tokens at ``(indices + 1).bool().sum(dim=1).max()``: as many as there are
places is the most memory. Counts of what is equal (``(guess == label).sum()``) stay none: a program
that ends when all answers are right would end at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.prediction.tensors.ended_sequences import PARTS
from vramlens.prediction.tensors.operator_schema import Operator

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_IS_THERE = "vramlens_is_there"
_COUNT = "vramlens_count"
_COUNTS = {"aten.sum", "aten.count_nonzero"}
_KEEPS_COUNT = {"aten.max", "aten.min", "aten.amax", "aten.amin"} | PARTS
_SIGNS = {"aten.add": 1, "aten.sub": -1}


def count_of(tensor: Any) -> int:
    """The most that an unknown count can be; 0 of any other integer."""
    return int(_remembered(tensor, _COUNT) or 0)


def follow_counts(operator: Operator, args: Any, outputs: list[Any]) -> None:
    """Remembers which masks say what is there, and what their sums are at most."""
    for result in outputs:
        if result.dtype is torch.bool:
            setattr(result, _IS_THERE, _says_what_is_there(operator, args))
        elif not result.is_floating_point():
            setattr(result, _COUNT, _count_after(operator, args, result))


def _says_what_is_there(operator: Operator, args: Any) -> bool:
    if operator.name == "aten._to_copy":
        return args[0].dtype is not torch.bool or bool(_remembered(args[0], _IS_THERE))
    return operator.name == "aten.ne"


def _count_after(operator: Operator, args: Any, result: Any) -> int | None:
    name = operator.name
    if name in _COUNTS and _remembered(args[0], _IS_THERE):
        return int(args[0].numel() // max(1, result.numel()))
    if operator.is_view or name in _KEEPS_COUNT:
        count: int | None = _remembered(args[0], _COUNT)
        return count
    if name in _SIGNS and type(args[1]) is int and _remembered(args[0], _COUNT) is not None:
        return count_of(args[0]) + _SIGNS[name] * args[1]
    return None


def _remembered(tensor: Any, name: str) -> Any | None:
    return getattr(tensor, "__dict__", {}).get(name)
