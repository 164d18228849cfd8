"""Masks that ask which sequences have ended, or still go on, by a token that was chosen.

A generation asks after each token whether all sequences have ended. Which token a model chooses
nobody knows, but it is not the end for all at once: so a generation goes to its longest, where a
number ends it. That is also the most memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramlens.prediction.tensors.operator_schema import Operator

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_IS_CHOSEN = "vramlens_is_chosen"
_HOLDS = "vramlens_holds"
_SOME, _NOT_ALL = "some", "not all"
"""What is taken of a mask whose values nobody knows."""
_CHOOSES = {"aten.argmax", "aten.topk", "aten.multinomial", "aten.max", "aten.sort"}
_COMPARES = {"aten.eq": _NOT_ALL, "aten.isin": _NOT_ALL, "aten.ne": _SOME}
_BY_ONE_SIDE = {
    "aten.bitwise_or": _SOME, "aten.logical_or": _SOME,
    "aten.bitwise_and": _NOT_ALL, "aten.logical_and": _NOT_ALL,
}  # fmt: skip
"""Operators on two masks, and what holds of their result where it holds of one of them."""
_OPPOSITE = {_SOME: _NOT_ALL, _NOT_ALL: _SOME}
_NOT = {"aten.bitwise_not", "aten.logical_not"}
_PARTS = {"aten.clone", "aten._to_copy", "aten.index", "aten.index_select", "aten.gather"}


def all_hold(mask: Any) -> bool:
    """What is said of a mask whose values nobody knows: what programs ask so of is that all is
    well, or that all sequences have ended.
    """
    return _holds_of(mask) != _NOT_ALL


def any_holds(mask: Any) -> bool:
    """What is said of a mask whose values nobody knows: none, but that some sequences go on."""
    return _holds_of(mask) == _SOME


def follow_endings(
    operator: Operator,
    args: Any,
    tensors: list[Any],
    outputs: list[Any],
    is_known: Callable[[Any], bool],
) -> None:
    """Remembers which integers are chosen, and what holds of masks that compare them.

    Args:
        is_known: whether a tensor's values are known.
    """
    for result in outputs:
        if result.dtype is torch.bool:
            setattr(result, _HOLDS, _holds_after(operator, args, tensors, is_known))
        elif not result.is_floating_point() and _is_chosen(operator, args, tensors):
            setattr(result, _IS_CHOSEN, True)


def _is_chosen(operator: Operator, args: Any, tensors: list[Any]) -> bool:
    if operator.name == "aten.remainder" and args[1] == 1:
        return False  # 0, whatever was chosen: a distribution asks so whether numbers are whole
    return operator.name in _CHOOSES or any(
        getattr(tensor, "__dict__", {}).get(_IS_CHOSEN) for tensor in tensors
    )


def _holds_after(
    operator: Operator, args: Any, tensors: list[Any], is_known: Callable[[Any], bool]
) -> str | None:
    name = operator.name.removesuffix("_")
    if name in _COMPARES:
        return _COMPARES[name] if _is_chosen(operator, args, tensors) else None
    if name in _NOT:
        return _OPPOSITE.get(_holds_of(tensors[0]) or "")
    if name in _BY_ONE_SIDE:
        sides = [_holds_of(tensor) for tensor in tensors if not is_known(tensor)]
        return _BY_ONE_SIDE[name] if _BY_ONE_SIDE[name] in sides else _same(sides)
    return _holds_of(args[0]) if operator.is_view or name in _PARTS else None


def _same(sides: list[str | None]) -> str | None:
    return sides[0] if len(set(sides)) == 1 else None


def _holds_of(mask: Any) -> str | None:
    known: str | None = getattr(mask, "__dict__", {}).get(_HOLDS)
    return known
