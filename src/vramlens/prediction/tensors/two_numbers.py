"""Large tensors of two numbers, as masks that are added to attention: known by the mask that says which
number is where, and by themselves as soon as a part is small.

Longformer takes a row of such a mask, marks in it the tokens that attend to all, and asks whether there
are any: a whole attention hangs on the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramlens.prediction.tensors.operator_schema import UNABLE, Operator

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_TWO = "vramlens_two_numbers"
_MOST_BYTES = 4 << 20
"""Of a part whose numbers are written out: a row for each of a batch's sequences."""


def follow_two_numbers(
    operator: Operator,
    args: Any,
    kwargs: Any,
    output: Any,
    value_of: Callable[[Any], Any | None],
) -> Any | None:
    """The values of a part of such a tensor, where it is small; remembers those that are large.

    Args:
        value_of: a tensor's values; None where they are not known.
    """
    if not isinstance(output, torch.Tensor) or not output.is_floating_point():
        return None
    two = _chosen(operator, args, value_of) or _part(operator, args, kwargs)
    if two is None or two[0].shape != output.shape:
        return None
    setattr(output, _TWO, two)
    if output.nbytes > _MOST_BYTES:
        return None
    mask, first, second = two
    numbers = (torch.tensor(number, dtype=output.dtype) for number in (first, second))
    return torch.where(mask, *numbers)


def forget_two_numbers(tensor: Any) -> None:
    """A tensor, or what it is a view of, is written."""
    for written in (tensor, tensor._base):
        if written is not None:
            written.__dict__.pop(_TWO, None)


def _chosen(
    operator: Operator, args: Any, value_of: Callable[[Any], Any | None]
) -> tuple[Any, float, float] | None:
    """Which of two numbers ``torch.where`` takes; None for all else."""
    if operator.name != "aten.where" or len(args) < 3:
        return None
    mask = value_of(args[0])
    first, second = (_number(side, value_of) for side in args[1:3])
    if mask is None or first is None or second is None:
        return None
    return mask.clone(memory_format=torch.contiguous_format), first, second


def _number(side: Any, value_of: Callable[[Any], Any | None]) -> float | None:
    if not isinstance(side, torch.Tensor):
        return float(side)
    content = value_of(side) if side.dim() == 0 else None
    return None if content is None else float(content.item())


def _part(operator: Operator, args: Any, kwargs: Any) -> tuple[Any, float, float] | None:
    """The part of such a tensor that a view shows; None for all else."""
    is_plain_view = operator.is_view and operator.name != "aten.as_strided"
    if not is_plain_view or not args or not isinstance(args[0], torch.Tensor):
        return None
    two = args[0].__dict__.get(_TWO)
    if two is None:
        return None
    mask, first, second = two
    try:
        return operator.function(mask, *args[1:], **kwargs), first, second
    except UNABLE:
        return None
