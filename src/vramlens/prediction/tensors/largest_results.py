"""Results whose size hangs on values that nobody knows: what is taken for them, and that in words.

Mostly that is the largest that there can be: everything is selected. Of choices it is an even share,
of random numbers the share that a limit lets through (even_choices). Two operators have no largest
result: counts of numbers that may be of any size, and repeats of any number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from vramlens.prediction.tensors import even_choices
from vramlens.prediction.tensors.operator_schema import Operator

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_SMALLER = "the real size may be smaller, and the range includes that"
_LARGER = "the real size may be larger, and the range leaves that out"
_EVERYTHING = {
    "aten.nonzero": ("nonzero or where", "every number is nonzero"),
    "aten.index": ("x[mask]", "the mask selects everything"),
    "aten.masked_select": ("masked_select", "the mask selects everything"),
    "aten._unique2": ("unique", "no two numbers are equal"),
    "aten._unique": ("unique", "no two numbers are equal"),
    "aten.unique_dim": ("unique", "no two rows are equal"),
    "aten.unique_consecutive": ("unique_consecutive", "no two neighbors are equal"),
    "torchvision.nms": ("nms", "no box is dropped"),
}
_SELECT_BY_SHARE = {"aten.nonzero", "aten.index"}


class Assumption(NamedTuple):
    """What is taken for results of an operator.

    Attributes:
        operator: as a program calls it.
        words: what is assumed, and how the real size may differ.
    """

    operator: str
    words: str


def largest_result(operator: Operator, args: Any) -> Any:
    """The largest result that an operator can have, as values: everything is selected, or of
    even choices their share.
    """
    tensor = args[0]
    if operator.name == "aten.nonzero":
        return even_choices.selected(tensor).nonzero()
    if operator.name == "aten.index":
        source = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
        return source[tuple(map(_largest_index, args[1]))]
    if operator.name == "aten.masked_select":
        shape: Any = torch.broadcast_shapes(tensor.shape, args[1].shape)  # type: ignore[no-untyped-call]
        return torch.zeros(shape, dtype=tensor.dtype).flatten()
    if operator.name == "torchvision.nms":
        return torch.arange(tensor.shape[0])
    if operator.name == "aten.bincount":
        return torch.zeros(even_choices.choices_of(tensor) or 1, dtype=torch.long)
    if operator.name == "aten.repeat_interleave":
        return torch.arange(tensor.numel())
    if operator.name == "aten.unique_dim":
        rows = torch.zeros(tensor.shape[args[1]], dtype=torch.long)
        return torch.zeros((), dtype=tensor.dtype).expand(tensor.shape), rows, rows
    count = tensor.numel()
    first = 1 if operator.name == "aten.unique_consecutive" else 2
    wants = (*args[first : first + 2], False, False)[:2]
    positions = (torch.zeros(count if is_wanted else 0, dtype=torch.long) for is_wanted in wants)
    results = torch.zeros(count, dtype=tensor.dtype), *positions
    return results[: len(operator.function._schema.returns)]


def assumption_of(operator: Operator, args: Any) -> Assumption:
    """What ``largest_result`` assumes."""
    name = operator.name
    if name == "aten.repeat_interleave":
        words = f"every element is repeated once; {_LARGER} (output_size=N says it)"
        return Assumption("repeat_interleave", words)
    if name == "aten.bincount":
        if even_choices.choices_of(args[0]) is None:
            return Assumption("bincount", f"all numbers are 0; {_LARGER} (minlength=N says it)")
        return Assumption("bincount", f"every class or choice occurs; {_SMALLER}")
    label, everything = _EVERYTHING[name]
    masks = _masks(name, args) if name in _SELECT_BY_SHARE else []
    shares = [_share_words(mask) for mask in masks if even_choices.share_of(mask) is not None]
    return Assumption(label, shares[0] if shares else f"{everything}; {_SMALLER}")


def _masks(name: str, args: Any) -> list[Any]:
    if name == "aten.nonzero":
        return [args[0]]
    return [index for index in args[1] if index is not None and index.dtype is torch.bool]


def _share_words(mask: Any) -> str:
    """What is assumed of a mask that a share is known of."""
    if even_choices.is_drawn(mask):
        return (
            "as many random numbers are selected as the script's limit lets through; the real size"
            " may differ a little"
        )
    if even_choices.most_times(mask) == 1:
        return f"as many are selected as the detector's sampler allows; {_SMALLER}"
    return (
        "the mask selects an even share of the choices (of n experts 1 in n), or the places that"
        " were set in it; the real size may be from nothing to twice that, and the range includes"
        " both"
    )


def _largest_index(index: Any) -> Any:
    """An index of the same form that selects as much as it can."""
    if index is None:
        return slice(None)
    if index.dtype is torch.bool:
        return even_choices.selected(index)
    return torch.zeros(index.shape, dtype=index.dtype)
