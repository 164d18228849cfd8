"""Two einsums, one after the other, in another order: the new factor meets one of the first two, then the other."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

_TWO_FACTORS = re.compile(r"^\s*([a-zA-Z]+)\s*,\s*([a-zA-Z]+)\s*->\s*([a-zA-Z]*)\s*$")


@dataclass(frozen=True, slots=True)
class EinsumOrder:
    """A contraction of three factors in two steps.

    Attributes:
        first: the equation of the new factor with one of the other two.
        second: that of its result with the remaining one.
        takes_left: whether the first step takes the left one of the two.
    """

    first: str
    second: str
    takes_left: bool


def parts_of(equation: str) -> tuple[str, str, str] | None:
    """The letters of both factors and of the result; None where an equation is no product of two."""
    letters = _TWO_FACTORS.match(equation)
    return None if letters is None else (letters[1], letters[2], letters[3])


def other_order(pair: str, whole: str, *, pair_stands_first: bool) -> EinsumOrder | None:
    """The order in which no result has as many dimensions as that of the pair; None where there is none, or an
    equation is no product of two.

    Args:
        pair: the equation of the first two factors.
        whole: that of their result with the new one.
        pair_stands_first: whether their result is the left factor of ``whole``.
    """
    parts, later_parts = parts_of(pair), parts_of(whole)
    if parts is None or later_parts is None:
        return None
    left, right, output = parts
    in_whole, new = later_parts[:2] if pair_stands_first else later_parts[1::-1]
    target = later_parts[2]
    if len(output) != len(in_whole) or len(set(in_whole)) < len(in_whole):
        return None
    letters = dict(zip(output, in_whole, strict=True))
    for letter in left + right:
        if letter not in letters:
            taken = {*in_whole, *new, *target, *letters.values()}
            free = (other for other in letter + string.ascii_letters if other not in taken)
            letters[letter] = next(free)
    left, right = ("".join(map(letters.__getitem__, factor)) for factor in (left, right))
    orders = (
        _order(new, left, right, target, takes_left=True),
        _order(new, right, left, target, takes_left=False),
    )
    order = min(orders, key=lambda steps: len(_result_of(steps.first)))
    return order if len(_result_of(order.first)) < len(output) else None


def _order(new: str, near: str, far: str, target: str, *, takes_left: bool) -> EinsumOrder:
    between = "".join(letter for letter in dict.fromkeys(new + near) if letter in far + target)
    return EinsumOrder(f"{new},{near}->{between}", f"{between},{far}->{target}", takes_left)


def _result_of(equation: str) -> str:
    return equation.partition("->")[2]
