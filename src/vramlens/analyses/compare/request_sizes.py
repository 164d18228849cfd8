"""Request sizes: how large what each line asks for is in another run.

A fix changes how many results stay, or for how long. Another batch or input changes how large each of
them is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import COMPUTED, Category
from vramlens.analyses.attribution.phases import MODULE_CALL, Phase
from vramlens.analyses.compare.compared_run import Run
from vramlens.analyses.finding import Place
from vramlens.trace import NO_STACK

NEARLY = 0.02
"""Sizes that differ by no more are one size: a length may count one token more."""
_MOST_OF = 0.8
_MORE_OFTEN = 0.2
"""By so much more of the sizes a factor has to fit than none does: of sizes that are multiples of each other,
many fit both.
"""
_BLOCK_BYTES = 512
"""The allocator's smallest block: what asks for less is a number, which no batch makes larger."""
_MOST_FACTORS = 8

Sizes = Mapping[Place, frozenset[int]]
"""By line, the distinct sizes that it asks for."""
_Pair = tuple[frozenset[int], frozenset[int]]
"""The sizes of a line before and after."""


@dataclass(frozen=True, slots=True)
class RequestSizes:
    """What the lines of a run ask for at a time.

    Attributes:
        results: in the forward pass: what modules compute, and their inputs.
        inputs: of that, what is asked for just before the model is called.
        weights: parameters.
    """

    results: Sizes
    inputs: Sizes
    weights: Sizes


def request_sizes(run: Run) -> RequestSizes:
    """What the lines of a run ask for at a time."""
    view = run.view
    category, phases = view.categories.category, view.phases
    is_forward = (phases.span < 0) & (phases.phase != Phase.OPTIMIZER)
    is_result = is_forward & np.isin(category, COMPUTED)
    return RequestSizes(
        results=_sizes(view, is_result),
        inputs=_sizes(view, is_result & _before_model(view, is_forward)),
        weights=_sizes(view, category == Category.PARAMETERS),
    )


def _sizes(view: Attribution, is_asked: NDArray[np.bool_]) -> Sizes:
    """The distinct sizes of some requests, by line."""
    allocations = view.device.allocations
    rows = np.flatnonzero(
        is_asked & (view.phases.frame >= 0) & (allocations.requested_bytes > _BLOCK_BYTES)
    )
    distinct, number = np.unique(allocations.requested_bytes[rows], return_inverse=True)
    count = max(1, len(distinct))
    sizes: dict[Place, set[int]] = {}
    for pair in np.unique(view.phases.frame[rows] * count + number.reshape(-1)).tolist():
        place = view.place(pair // count)
        if place is not None:
            sizes.setdefault(place, set()).add(int(distinct[pair % count]))
    return {place: frozenset(line_sizes) for place, line_sizes in sizes.items()}


def _before_model(view: Attribution, is_forward: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """One flag a row: whether it is asked for between the last pass and a call of the model."""
    stacks, stack = view.trace.stacks, view.device.allocations.stack
    in_module = np.zeros(len(stack), np.bool_)
    has_stack = stack != NO_STACK
    in_module[has_stack] = stacks.any_frame(stacks.mark_frames(MODULE_CALL))[stack[has_stack]]
    is_outside = is_forward & ~in_module & (view.device.allocations.born >= 0)
    # Row by row in the order of births: the next row that is not outside is a module's.
    ends = np.flatnonzero(~is_outside)
    following = np.searchsorted(ends, np.arange(len(stack)))
    is_followed = following < len(ends)
    flags = np.zeros(len(stack), np.bool_)
    next_row = ends[following[is_followed]]
    flags[is_followed] = (in_module & is_forward)[next_row]
    return flags & is_outside


@dataclass(frozen=True, slots=True)
class SizeChange:
    """How the sizes of lines that both runs have changed.

    Attributes:
        factor: what nearly all were multiplied by; None where there is no such factor, or they are the
            same.
        has_squares: whether many have the square of the factor.
        varies: whether some line asks for more distinct sizes in one of the runs, as for batches of any
            length: then its sizes are others by themselves.
        same_share: the share of the sizes that are the same; None without such lines.
        largest: the largest size of a line before and after, of the line with the largest; zeros without lines.
    """

    factor: float | None
    has_squares: bool
    varies: bool
    same_share: float | None
    largest: tuple[int, int]


def size_change(
    before: Sizes, after: Sizes, places: Mapping[Place, Place], *, is_squared: bool = True
) -> SizeChange:
    """How the sizes of lines that both runs have changed.

    Args:
        places: by line in the run before, its place in the run after.
        is_squared: whether sizes may have the square of a factor, too: of twice the length, scores of
            attention take four times as much.
    """
    pairs = [
        (before[old], after[new]) for old, new in places.items() if old in before and new in after
    ]
    if not pairs:
        return SizeChange(None, False, False, None, (0, 0))
    largest = max((max(old), max(new)) for old, new in pairs)
    varies = any(len(old) != len(new) for old, new in pairs)
    same_share = _fitting(pairs, 1.0, is_squared)
    shares = {ratio: _fitting(pairs, ratio, is_squared) for ratio in _ratios(pairs)}
    best = max(shares, key=lambda ratio: shares[ratio], default=None)
    if best is None or shares[best] < max(_MOST_OF, same_share + _MORE_OFTEN):
        return SizeChange(None, False, varies, same_share, largest)
    has_squares = _fitting(pairs, best, False) < _MOST_OF
    return SizeChange(best, has_squares, varies, same_share, largest)


def _ratios(pairs: Sequence[_Pair]) -> list[float]:
    """Factors that may fit: those of what each line asks most for, of the largest lines."""
    largest = sorted(((max(old), max(new)) for old, new in pairs), reverse=True)
    ratios = dict.fromkeys(round(new / old, 3) for old, new in largest)
    return [ratio for ratio in ratios if ratio and abs(ratio - 1) > NEARLY][:_MOST_FACTORS]


def _fitting(pairs: Sequence[_Pair], ratio: float, is_squared: bool) -> float:
    """The share of the sizes of both runs that fit a factor; by their logarithms, so that neither one
    large request nor many small ones decide.
    """
    fitting = total = 0.0
    for old, new in pairs:
        for sizes, counterparts, by in ((old, new, ratio), (new, old, 1 / ratio)):
            targets = np.array(sorted(counterparts))
            for size in sizes:
                weight = math.log2(size / _BLOCK_BYTES)
                total += weight
                is_fit = _is_near(targets, size * by)
                if is_fit or (is_squared and _is_near(targets, size * by * by)):
                    fitting += weight
    return fitting / total if total else 0.0


def _is_near(targets: NDArray[np.int64], size: float) -> bool:
    """Whether one of some sorted sizes is nearly this one."""
    first, last = np.searchsorted(targets, (size * (1 - NEARLY), size * (1 + NEARLY)))
    return bool(last > first)
