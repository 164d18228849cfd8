"""Choices that values decide, such as which experts a router sends a token to: taken as even.

Where nobody knows the values, each of n possible choices is taken to be made equally often: that is
what a router is trained for. A comparison of such a choice with one number then holds for one in n,
and so many rows are selected by it. The range goes from none to twice as many.

A choice is the position of what is largest, or a whole number between two bounds that stand near each
other: so a detector sends its boxes to a level of its pyramid (LevelMapper in torchvision/ops/poolers.py).

Of many random numbers between 0 and 1 as many are below a limit as the limit says, to a few in ten
thousand: a mask of them, such as one that drops edges, is taken to be sure. How many is drawn each
time, as what is a little larger than before needs a new block. Of fewer each is drawn
(random_numbers). When so was drawn is remembered: another run draws otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vramlens.prediction.tensors.operator_schema import Operator

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_CHOICES, _SHARE = "vramlens_choices", "vramlens_share"
_ABOVE_ZERO, _IS_LIMIT = "vramlens_above_zero", "vramlens_is_limit"
_POSITIONS = {"aten.topk": (1, 2), "aten.argmax": (0, 1), "aten.max": (1, 1), "aten.sort": (1, 1)}
"""Operators that choose: which of their results are positions, and where the dimension stands."""
_COPIES = {"aten.clone", "aten._to_copy"}
_STEPS, _MOST_STEPS = "vramlens_steps", 64
"""How many whole numbers lie between a tensor's bounds; of more nobody makes levels or kinds."""
_BOUND = {"aten.clamp", "aten.clamp_"}
_ROUND = {"aten.floor", "aten.ceil", "aten.round", "aten.trunc"}
_SHIFT = {"aten.add", "aten.sub"}
_IS_UNIFORM, _IS_DRAWN = "vramlens_is_uniform", "vramlens_is_drawn"
_UNIFORM = {"aten.rand", "aten.rand_like"}
_LEAST_SURE = 1 << 20
"""Random numbers from which on the share below a limit is sure."""
_ROUNDING = 1e-6
"""Of a row: a share of whole rows, multiplied by all, is no row more."""
BELOW, _ABOVE = {"aten.lt", "aten.le"}, {"aten.gt", "aten.ge"}


def share_of(tensor: Any) -> float | None:
    """The share of a mask that is taken to hold; None where nothing is known."""
    share: float | None = getattr(tensor, "__dict__", {}).get(_SHARE)
    return share


def is_drawn(mask: Any) -> bool:
    """Whether a mask compares many random numbers with a limit: then its share is as good as sure."""
    return bool(getattr(mask, "__dict__", {}).get(_IS_DRAWN))


def most_times(mask: Any) -> int:
    """How many times as much as is taken a mask may select: twice an even share."""
    return 2 if share_of(mask) is not None and not mask.__dict__.get(_IS_LIMIT) else 1


def limit_share_above_zero(numbers: Any, share: float) -> None:
    """Notes that at most a share of numbers is above zero, and that so many are taken to be."""
    setattr(numbers, _ABOVE_ZERO, share)


def follow_choices(
    operator: Operator,
    args: Any,
    outputs: list[Any],
    deviation: Callable[[], float],
    note_draw: Callable[[], None],
) -> None:
    """Remembers which results are choices, and which masks compare one.

    Args:
        deviation: draws a number of the normal distribution.
        note_draw: called when a mask of random numbers is drawn.
    """
    if not outputs:
        return
    name = operator.name
    if name in _UNIFORM:
        setattr(outputs[0], _IS_UNIFORM, True)
    elif args and isinstance(args[0], torch.Tensor):
        _follow_masks(operator, args, outputs)
        _follow_bounds(name, args, outputs[0])
        if (name in BELOW or name in _ABOVE) and args[0].__dict__.get(_IS_UNIFORM):
            note_draw()
        _follow_drawn(name, args, outputs[0], deviation)


def _follow_masks(operator: Operator, args: Any, outputs: list[Any]) -> None:
    name, source = operator.name, args[0]
    if operator.written:
        _follow_written_mask(name, args)
    elif outputs[0].dtype in (torch.uint8, torch.bool):
        _follow_mask(name, args, outputs[0])
    if name in _POSITIONS:
        _note_positions(name, args, outputs)
    elif name in ("aten.eq", "aten.gt"):
        _note_comparison(name, args, outputs[0])
    elif operator.is_view or name in _COPIES:
        for key in (_CHOICES, _SHARE, _IS_DRAWN, _IS_UNIFORM):
            note = source.__dict__.get(key)
            if note is not None:
                for output in outputs:
                    setattr(output, key, note)


def _follow_bounds(name: str, args: Any, result: Any) -> None:
    """Whole numbers between two bounds are choices, shifted ones, too."""
    source = args[0]
    if name in _BOUND:
        steps = _steps_between(*args[1:3]) if len(args) > 2 else None
    elif name in _ROUND or name in _COPIES:
        steps = source.__dict__.get(_STEPS)
    else:
        is_shift = name in _SHIFT and len(args) > 1 and isinstance(args[1], int)
        steps = choices_of(source) if is_shift else None
    if steps is not None:
        setattr(result, _STEPS if result.is_floating_point() else _CHOICES, steps)


def _follow_drawn(name: str, args: Any, mask: Any, deviation: Callable[[], float]) -> None:
    """The share of a mask that compares random numbers with a limit, and of its opposite."""
    source = args[0].__dict__
    if name in ("aten.bitwise_not", "aten.logical_not") and is_drawn(args[0]):
        share = 1 - (share_of(args[0]) or 0.0)
    elif (name in BELOW or name in _ABOVE) and source.get(_IS_UNIFORM):
        if not isinstance(args[1], (int, float)) or args[0].numel() < _LEAST_SURE:
            return
        below = min(1.0, max(0.0, float(args[1])))
        share = below if name in BELOW else 1 - below
        count = args[0].numel()
        share = round(share * count + deviation() * math.sqrt(share * (1 - share) * count)) / count
    else:
        return
    setattr(mask, _SHARE, share)
    setattr(mask, _IS_DRAWN, True)


def _steps_between(lowest: Any, highest: Any) -> int | None:
    """How many whole numbers lie between two bounds; None where they are no numbers, or many."""
    if not isinstance(lowest, (int, float)) or not isinstance(highest, (int, float)):
        return None
    if not 0 < highest - lowest < _MOST_STEPS:  # infinite ones are not
        return None
    return math.floor(highest) - math.ceil(lowest) + 1


def _follow_mask(name: str, args: Any, mask: Any) -> None:
    """The shares of masks that begin empty, and of two together: so a detector samples its
    proposals (torchvision/models/detection/_utils.py).

    In inference mode nobody knows which tensor a view is written through.
    """
    if name in ("aten.zeros_like", "aten.new_zeros") and not torch.is_inference_mode_enabled():
        setattr(mask, _SHARE, 0.0)
    elif name in ("aten.bitwise_or", "aten.logical_or"):
        shares = [share_of(side) for side in args[:2]]
        if None not in shares:
            setattr(mask, _SHARE, min(1.0, sum(share or 0.0 for share in shares)))


def forget_share(mask: Any) -> None:
    """A mask, or what it is a view of, is written in a way that nobody follows."""
    for written in (mask, mask._base):
        if written is not None:
            for key in (_SHARE, _IS_DRAWN, _IS_UNIFORM):
                written.__dict__.pop(key, None)


def _follow_written_mask(name: str, args: Any) -> None:
    """The share of a mask that is set at some places; none where it is written otherwise."""
    mask, share = args[0], share_of(args[0])
    forget_share(mask)
    if name == "aten.scatter_" and choices_of(args[2]) is not None:
        setattr(mask, _SHARE, args[2].numel() / max(1, mask.numel()))
    if mask._is_view():
        return
    if name == "aten.index_put_" and share is not None:
        places = [place for place in args[1] if place is not None]
        if len(places) == 1 and places[0].dtype is torch.int64:
            added = places[0].numel() / max(1, mask.numel())
            setattr(mask, _SHARE, min(1.0, share + added))


def _note_comparison(name: str, args: Any, mask: Any) -> None:
    if not isinstance(args[1], int):
        return
    choices, above_zero = choices_of(args[0]), args[0].__dict__.get(_ABOVE_ZERO)
    if name == "aten.eq" and choices is not None:
        setattr(mask, _SHARE, 1 / choices)
    if name == "aten.gt" and above_zero is not None:
        setattr(mask, _SHARE, above_zero)
        setattr(mask, _IS_LIMIT, True)


def _note_positions(name: str, args: Any, outputs: list[Any]) -> None:
    place, dimension_place = _POSITIONS[name]
    has_dimension = len(args) > dimension_place and isinstance(args[dimension_place], int)
    if len(outputs) <= place or (not has_dimension and name in ("aten.argmax", "aten.max")):
        return
    dimension = args[dimension_place] if has_dimension else -1
    shape = args[0].shape
    if shape:
        setattr(outputs[place], _CHOICES, max(1, int(shape[dimension])))


def choices_of(tensor: Any) -> int | None:
    """How many choices a tensor's numbers are made among; None where they are not choices."""
    choices: int | None = getattr(tensor, "__dict__", {}).get(_CHOICES)
    return choices


def selected(mask: Any) -> Any:
    """A mask of the same shape that holds as often as is taken; everywhere where that is not
    known.
    """
    share = share_of(mask)
    if share is None:
        return torch.ones(mask.shape, dtype=torch.bool)
    holds = torch.zeros(mask.numel(), dtype=torch.bool)
    holds[: math.ceil(share * mask.numel() - _ROUNDING)] = True
    return holds.view(mask.shape)
