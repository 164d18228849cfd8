"""Pairs of requests that two spans make alike, put right where one span made a request more.

A library asks several times in one call, and in a program's first call for what it keeps: cuDNN
for an RNN's flat weights. By their order alone, all that follow would be paired with the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

_APART = 4.0
"""Of the sizes' ratios in one kind, the largest by the smallest: a batch or a length that changes
makes one request grow as another does, or as its square.
"""
_LEFT_OUT, _WITHOUT_PARTNER = 1.0, 3.0
"""What it costs to leave one of theirs out, and one of ours, as the logarithm of a ratio of sizes: theirs
go on where ours end, so that leaving all of ours out must not be cheap.
"""
_MOST_CELLS = 20_000
_LEAST_BYTES = 4096
"""Smaller requests tell nothing of how a batch grows."""

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]
"""What is alike in two spans, theirs and ours."""


def with_likest_sizes(
    their_sizes: NDArray[np.int64],
    our_sizes: NDArray[np.int64],
    their_kinds: NDArray[np.int64],
    our_kinds: NDArray[np.int64],
    pairs: Pairs,
) -> Pairs:
    """The pairs; those of a kind whose sizes' ratios contradict each other paired anew, in their
    order, so that the sizes differ least.

    Args:
        their_sizes, our_sizes: requested bytes of the two spans' requests, in their order.
        their_kinds, our_kinds: which call each belongs to; those of -1 stay as they are.
        pairs: the places in the two spans of what is alike.
    """
    theirs, ours = pairs
    kinds = our_kinds[ours]
    for kind in _contradicting(kinds, their_sizes[theirs], our_sizes[ours]):
        rows, columns = np.flatnonzero(our_kinds == kind), np.flatnonzero(their_kinds == kind)
        if len(rows) * len(columns) > _MOST_CELLS:
            continue
        anew = _least_different(their_sizes[columns].tolist(), our_sizes[rows].tolist())
        is_other = kinds != kind
        theirs = np.append(theirs[is_other], columns[[place for place, _ in anew]])
        ours = np.append(ours[is_other], rows[[place for _, place in anew]])
        kinds = our_kinds[ours]
    return theirs, ours


def _contradicting(
    kinds: NDArray[np.int64], theirs: NDArray[np.int64], ours: NDArray[np.int64]
) -> Iterator[int]:
    """Yields the kinds of which some requests grew far more than others."""
    ratios = np.log(np.maximum(ours, 1) / np.maximum(theirs, 1))
    is_large = (np.maximum(theirs, ours) >= _LEAST_BYTES) & (kinds >= 0)
    kinds, ratios = kinds[is_large], ratios[is_large]
    if not len(kinds) or float(np.ptp(ratios)) <= np.log(_APART):
        return
    names, number = np.unique(kinds, return_inverse=True)
    highest, lowest = np.full(len(names), -np.inf), np.full(len(names), np.inf)
    np.maximum.at(highest, number, ratios)
    np.minimum.at(lowest, number, ratios)
    yield from names[highest - lowest > np.log(_APART)].tolist()


def _least_different(theirs: Sequence[int], ours: Sequence[int]) -> list[tuple[int, int]]:
    """The places of what is paired, in order: with the least sum of the sizes' ratios, as
    logarithms, and of what is left out. Theirs may go on where ours end.
    """
    logs = np.log(np.maximum(np.array(theirs, np.float64), 1))
    costs = np.zeros((len(ours) + 1, len(theirs) + 1))
    costs[0] = _LEFT_OUT * np.arange(len(theirs) + 1)
    costs[:, 0] = _WITHOUT_PARTNER * np.arange(len(ours) + 1)
    for row, size in enumerate(ours):
        difference = np.abs(logs - np.log(max(size, 1)))
        best = np.minimum(costs[row, :-1] + difference, costs[row, 1:] + _WITHOUT_PARTNER)
        for column, cost in enumerate(best.tolist()):
            costs[row + 1, column + 1] = min(cost, costs[row + 1, column] + _LEFT_OUT)
    pairs = []
    row, column = len(ours), int(np.argmin(costs[-1]))
    while row and column:
        difference = abs(float(logs[column - 1]) - float(np.log(max(ours[row - 1], 1))))
        if np.isclose(costs[row, column], costs[row - 1, column - 1] + difference):
            row, column = row - 1, column - 1
            pairs.append((column, row))
        elif np.isclose(costs[row, column], costs[row - 1, column] + _WITHOUT_PARTNER):
            row -= 1
        else:
            column -= 1
    return pairs[::-1]
