"""Succession: what lives on where some requests are never made.

A turn of a loop replaces what the turn before it left, and its backward adds to gradients that a
later turn's began. Without the turn, what it replaced would have stayed as long as what came
instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from vramlens.prediction.requests.request_log import ALLOCATE, FREE, RequestLog, Undecided

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Succession:
    """Takes rows out of a log, stretch by stretch, in order."""

    def __init__(self, log: RequestLog) -> None:
        self._sizes = log.sizes
        self._kinds, self._rows = np.array(log.kinds, np.int64), np.array(log.rows, np.int64)
        self._born, self._freed = self._events_of(ALLOCATE), self._events_of(FREE)
        self._made = np.array(log.nodes_made, np.int64)
        self._run = np.array(log.nodes_run, np.int64)
        self._by_node = np.argsort(self._run, kind="stable")
        self._pass = np.cumsum(self._run < 0)  # the rows of one backward pass have one number
        self._gone: set[int] = set()
        self._successors: dict[int, int] = {}
        self._standing: set[int] = set()

    def undecided(self) -> Undecided:
        """All that was taken out."""
        return Undecided(frozenset(self._gone), self._successors)

    def without(self, rows: range, following: int) -> None:
        """Takes out some rows, and what the backward of their operators requests.

        Args:
            following: the first row after them that has a stack.
        """
        begin, end = int(self._born[rows.start]), int(self._born[following])
        frees = self._rows[begin:end][self._kinds[begin:end] == FREE]
        given_way = [row for row in frees[frees < rows.start].tolist() if self._is_there(row)]
        survivors = [row for row in rows if self._freed[row] >= end]
        self._gone.update(rows)
        self._hand_on(given_way, survivors)
        for backward in self._backwards_of(rows):
            self._without_backward(backward)

    def _events_of(self, kind: int) -> NDArray[np.int64]:
        """By row, the event of a kind; after all events where there is none."""
        events = np.full(len(self._sizes) + 1, len(self._kinds))
        places = np.flatnonzero(self._kinds == kind)
        events[self._rows[places]] = places
        return events

    def _is_there(self, row: int) -> bool:
        return row not in self._gone or row in self._standing

    def _backwards_of(self, rows: range) -> Iterable[NDArray[np.int64]]:
        """The later rows that the backward of these rows' operators requests, pass by pass."""
        forward = [row for row in rows if self._run[row] < 0]
        if not forward:
            return ()
        first_node, end_node = max(0, self._made[forward[0]] - 1), self._made[forward[-1]]
        places = np.searchsorted(self._run[self._by_node], (first_node, end_node))
        theirs = np.sort(self._by_node[slice(*places)])
        later = theirs[theirs >= rows.stop]
        return np.split(later, np.flatnonzero(np.diff(self._pass[later])) + 1) if len(later) else ()

    def _without_backward(self, rows: NDArray[np.int64]) -> None:
        """Takes out rows of one backward pass; a gradient that they began is begun by a later one
        of the same size, and one that nothing later can begin is there as it was.
        """
        last = int(rows[-1])
        end = int(self._born[last + 1])
        gone, survivors = rows[self._freed[rows] < end], rows[self._freed[rows] >= end]
        self._gone.update(gone.tolist())
        later_rows = range(last + 1, int(np.searchsorted(self._pass, self._pass[last], "right")))
        for survivor in survivors.tolist():
            is_outlived = self._freed[later_rows.start : later_rows.stop] < self._freed[survivor]
            heirs = (np.flatnonzero(is_outlived) + later_rows.start).tolist()
            self._gone.update(self._hand_on(filter(self._is_there, heirs), [survivor]))

    def _hand_on(self, sure: Iterable[int], undecided: Iterable[int]) -> list[int]:
        """Has sure rows live as long as undecided ones of their sizes, the last first; those that
        were matched.
        """
        by_size: dict[int, list[int]] = {}
        for row in undecided:
            by_size.setdefault(self._sizes[row], []).append(row)
        matched = []
        for row in sure:
            alike = by_size.get(self._sizes[row])
            if alike and row not in self._successors:
                self._successors[row] = alike.pop()
                matched.append(self._successors[row])
        self._standing.update(matched)
        return matched
