"""The memory of each line of a program, added up from its allocations by columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import Phase
from vramlens.ranks.hints import Hint, hints_of
from vramlens.ranks.rank_summary import LineUse
from vramlens.trace import NO_STACK

_MOST_LINES = 400
_HINT_BITS = 20
"""A hint takes fewer bits: a place's number and a hint are one number."""


def line_uses(view: Attribution) -> tuple[LineUse, ...]:
    """The use of each line, the largest first; a line whose stacks say different things is
    several.
    """
    if not len(view.device.allocations):
        return ()
    hint = _hint_of_allocations(view)
    lines = _grouped(view, hint)
    frame, first = view.phases.frame, lines.first
    births = np.bincount(lines.line, minlength=lines.count)
    total_bytes = lines.bytes_of(slice(None))
    peak_event = view.device.requested.peak_event
    at_peak = view.device.allocations.alive_after(peak_event)
    at_peak_bytes = lines.bytes_of(at_peak)
    kept_bytes = lines.bytes_of(_kept_for_a_step(view, at_peak))
    main_sizes = lines.main_sizes(at_peak)
    static = _static_allocations(view)
    peak_bytes = lines.peak_bytes()
    is_static = lines.bytes_of(static) * 2 >= peak_bytes
    per_step = lines.births_of_a_step()
    sizes = lines.counts_of_sizes()
    # What stays says what a line is for, not what passes at it in each step.
    category, phase = (
        np.where(is_static, lines.main_kind(kind, static), lines.main_kind(kind))
        for kind in (view.categories.category, view.phases.phase)
    )

    largest = np.argsort(-peak_bytes, kind="stable")[:_MOST_LINES]
    return tuple(
        LineUse(
            place=view.place(int(frame[first[i]])),
            hints=Hint(int(hint[first[i]])),
            category=Category(int(category[i])).name.lower(),
            phase=Phase(int(phase[i])).name.lower(),
            peak_bytes=int(peak_bytes[i]),
            at_peak_bytes=int(at_peak_bytes[i]),
            allocations=int(births[i]),
            total_bytes=int(total_bytes[i]),
            per_step=int(per_step[i]),
            sizes=int(sizes[i]),
            static=bool(is_static[i]),
            kept_bytes=int(kept_bytes[i]),
            main_bytes=int(main_sizes[i]),
        )
        for i in largest.tolist()
    )


def _hint_of_allocations(view: Attribution) -> NDArray[np.int64]:
    stack = view.device.allocations.stack
    hint = np.zeros(len(stack), np.int64)
    has_stack = stack != NO_STACK
    hint[has_stack] = hints_of(view.trace.stacks)[stack[has_stack]]
    return hint


def _static_allocations(view: Attribution) -> NDArray[np.intp]:
    """Rows of the allocations that were there before the first step ended, and to the last."""
    steps = view.steps
    last_event = int(steps.starts[-1]) if len(steps) else len(view.device.events) - 1
    return np.flatnonzero((view.step <= 0) & (view.device.allocations.died > last_event))


def _kept_for_a_step(view: Attribution, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Those of some allocations that lived for a whole step: from before it began to after its end. What
    a name still holds while the next step makes its own lives from one step to the next only.
    """
    allocations, starts = view.device.allocations, view.steps.starts
    begun = np.searchsorted(starts, allocations.died[rows], side="left")
    begun -= np.searchsorted(starts, allocations.born[rows], side="right")
    return np.asarray(rows[begun >= 2])


@dataclass(frozen=True, eq=False)
class _Lines:
    """A device's allocations, grouped by line.

    Attributes:
        view: the device's attribution.
        line: by allocation, the number of its line.
        first: by line, its first allocation.
    """

    view: Attribution
    line: NDArray[np.int64]
    first: NDArray[np.intp]

    @property
    def count(self) -> int:
        """The number of lines."""
        return len(self.first)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Requested bytes, by allocation."""
        return self.view.device.allocations.requested_bytes

    def bytes_of(self, rows: NDArray[np.integer] | slice) -> NDArray[np.int64]:
        """The bytes of some allocations, by line."""
        sums = np.bincount(self.line[rows], weights=self.sizes[rows], minlength=self.count)
        return sums.astype(np.int64)

    def peak_bytes(self) -> NDArray[np.int64]:
        """The most bytes of each line that were alive at once."""
        allocations = self.view.device.allocations
        # A death comes before a birth at the same event: an event is one or the other of different
        # allocations.
        when = np.concatenate((allocations.born * 2 + 1, allocations.died * 2))
        lines = np.concatenate((self.line, self.line))
        change = np.concatenate((self.sizes, -self.sizes))
        order = np.lexsort((when, lines))
        # Each line's changes sum to nothing, so the next one starts at zero again.
        running = np.cumsum(change[order])
        starts = np.searchsorted(lines[order], np.arange(self.count))
        return np.asarray(np.maximum.reduceat(running, starts), np.int64)

    def births_of_a_step(self) -> NDArray[np.int64]:
        """Births of each line in the usual one of the steps that have any.

        Not the most: what a program allocates after a step may count for either of two.
        """
        is_in_step = self.view.step >= 0
        steps = max(1, len(self.view.steps))
        cell = self.line[is_in_step] * steps + self.view.step[is_in_step]
        cells: NDArray[np.integer]
        births: NDArray[np.integer]
        if self.count * steps <= 8 * len(self.line):
            table = np.bincount(cell, minlength=self.count * steps)
            cells = np.flatnonzero(table)
            births = table[cells]
        else:
            cells, births = np.unique(cell, return_counts=True)
        line = cells // steps
        ordered = births[np.lexsort((births, line))]
        ends = np.searchsorted(line, np.arange(self.count + 1))
        first, step_count = ends[:-1], np.diff(ends)
        usual = np.zeros(self.count, np.int64)
        has_any = step_count > 0
        usual[has_any] = ordered[(first + (step_count - 1) // 2)[has_any]]
        return usual

    def counts_of_sizes(self) -> NDArray[np.int64]:
        """The number of different sizes that each line has."""
        order = np.lexsort((self.sizes, self.line))
        lines, sizes = self.line[order], self.sizes[order]
        is_new = np.ones(len(lines), np.bool_)
        is_new[1:] = (lines[1:] != lines[:-1]) | (sizes[1:] != sizes[:-1])
        return np.bincount(lines[is_new], minlength=self.count)

    def main_sizes(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """The size of which most bytes of each line are, of some allocations; 0 where it has none."""
        line, size = self.line[rows], self.sizes[rows]
        order = np.lexsort((size, line))
        line, size = line[order], size[order]
        is_first = np.ones(len(line), np.bool_)
        is_first[1:] = (line[1:] != line[:-1]) | (size[1:] != size[:-1])
        firsts = np.flatnonzero(is_first)
        sums = np.add.reduceat(size, firsts) if len(firsts) else size
        # Of several assignments to one line, the last stays: the most bytes.
        ascending = firsts[np.argsort(sums, kind="stable")]
        main_sizes = np.zeros(self.count, np.int64)
        main_sizes[line[ascending]] = size[ascending]
        return main_sizes

    def main_kind(
        self, kind: NDArray[np.integer], rows: NDArray[np.integer] | slice = slice(None)
    ) -> NDArray[np.int64]:
        """The kind that most bytes of each line have, of all allocations or of some."""
        table = np.zeros((self.count, int(kind.max()) + 1), np.int64)
        np.add.at(table, (self.line[rows], kind[rows]), self.sizes[rows])
        return np.asarray(table.argmax(axis=1), np.int64)


def _grouped(view: Attribution, hint: NDArray[np.int64]) -> _Lines:
    # Frames are interned by more than what a person sees: one number a place.
    frames = np.unique(view.phases.frame)
    places = [view.place(frame) for frame in frames.tolist()]
    numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
    number_of_frame = np.array([numbers[place] for place in places], np.int64)
    number = number_of_frame[np.searchsorted(frames, view.phases.frame)]
    _, first, line = np.unique(number << _HINT_BITS | hint, return_index=True, return_inverse=True)
    return _Lines(view, line.reshape(-1), first)
