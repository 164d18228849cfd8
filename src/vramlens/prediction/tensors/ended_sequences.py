"""Masks that ask which sequences have ended, or still go on, by a token that was chosen.

A generation asks after each token whether all sequences have ended. Which token a model chooses
nobody knows, but it is not the end for all at once: so a generation goes to its longest, where a
number ends it. That is also the most memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramlens.prediction.tensors.operator_schema import ABSORBING, Operator

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_IS_CHOSEN = "vramlens_is_chosen"
_HOLDS = "vramlens_holds"
"""What is taken of a mask whose values nobody knows: True, some hold; False, not all do."""
_IS_ABOUT_ENDINGS = "vramlens_is_about_endings"
_CHOOSES = {"aten.argmax", "aten.topk", "aten.multinomial", "aten.max", "aten.sort"}
_COMPARES = {"aten.eq": False, "aten.isin": False, "aten.ne": True}
_NOT = {"aten.bitwise_not", "aten.logical_not"}
PARTS = {"aten.clone", "aten._to_copy", "aten.index", "aten.index_select", "aten.gather"}
"""Operators that make a copy of a tensor, or of some of its numbers."""


def all_hold(mask: Any) -> bool:
    """What is said of a mask whose values nobody knows: what programs ask so of is that all is
    well, or that all sequences have ended.
    """
    return _holds_of(mask) is not False


def any_holds(mask: Any) -> bool:
    """What is said of a mask whose values nobody knows: none, but that some sequences go on."""
    return _holds_of(mask) is True


def tell_endings(answer: Any, mask: Any) -> None:
    """Remembers of an answer whether its mask asked which sequences have ended."""
    setattr(answer, _IS_ABOUT_ENDINGS, _holds_of(mask) is not None)


def is_about_endings(answer: Any) -> bool:
    """Whether an answer says that sequences go on, to the longest and so to the most memory."""
    is_told = getattr(answer, "__dict__", {}).get(_IS_ABOUT_ENDINGS, False)
    return bool(is_told) or _holds_of(answer) is not None


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
    divisor = args[1] if operator.name == "aten.remainder" else None
    if isinstance(divisor, int) and divisor == 1:
        return False  # 0, whatever was chosen: a distribution asks so whether numbers are whole
    return operator.name in _CHOOSES or any(
        getattr(tensor, "__dict__", {}).get(_IS_CHOSEN) for tensor in tensors
    )


def _holds_after(
    operator: Operator, args: Any, tensors: list[Any], is_known: Callable[[Any], bool]
) -> bool | None:
    name = operator.name.removesuffix("_")
    if name in _COMPARES:
        return _COMPARES[name] if _is_chosen(operator, args, tensors) else None
    if name in _NOT:
        holds = _holds_of(tensors[0])
        return None if holds is None else not holds
    if name in ABSORBING:
        sides = [_holds_of(tensor) for tensor in tensors if not is_known(tensor)]
        return ABSORBING[name] if ABSORBING[name] in sides else _same(sides)
    return _holds_of(args[0]) if operator.is_view or name in PARTS else None


def _same(sides: list[bool | None]) -> bool | None:
    return sides[0] if len(set(sides)) == 1 else None


def _holds_of(mask: Any) -> bool | None:
    holds: bool | None = getattr(mask, "__dict__", {}).get(_HOLDS)
    return holds
