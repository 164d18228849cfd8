"""Nesting: which span of a thread lies within which, which is the innermost at a moment, and for
how long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.trace.profile import NONE, Kind, ProfilerTrace


@dataclass(frozen=True, eq=False)
class Nesting:
    """The spans of some kinds on their threads.

    A thread's time is cut where a span begins or ends; during each piece one span is the innermost.

    Attributes:
        rows: of ``Spans``, those that are nested here, each after the one that it lies in.
        parent: one element a row of ``Spans``: the row that it lies in; NONE.
        self_ns: one element a row of ``Spans``: for how long it was the innermost.
        piece_start_ns, piece_row: the pieces, thread by thread; a piece's row is NONE where nothing
            runs.
        threads: where each thread's pieces begin and end.
    """

    rows: NDArray[np.int64]
    parent: NDArray[np.int64]
    self_ns: NDArray[np.int64]
    piece_start_ns: NDArray[np.int64]
    piece_row: NDArray[np.int64]
    threads: dict[int, tuple[int, int]]

    def innermost(self, thread: NDArray[np.int64], time_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row that was the innermost of each thread at each moment; NONE.

        What happens at the very end of the last span belongs to it.
        """
        innermost_rows = np.full(len(thread), NONE, np.int64)
        for number, rows_of_thread in by_value(thread):
            first, last = self.threads.get(number, (0, 0))
            if first == last:
                continue
            starts, rows = self.piece_start_ns[first:last], self.piece_row[first:last]
            place = np.searchsorted(starts, time_ns[rows_of_thread], side="right") - 1
            row = np.where(place >= 0, rows[place], NONE)
            before = np.searchsorted(starts, time_ns[rows_of_thread], side="left") - 1
            innermost_rows[rows_of_thread] = np.where(
                (row == NONE) & (before >= 0), rows[before], row
            )
        return innermost_rows

    def timed_pieces(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """All pieces: when each begins and ends, and its row; NONE where nothing runs."""
        ends = self.piece_start_ns.copy()
        for first, last in self.threads.values():
            if first == last:
                continue
            ends[first : last - 1] = self.piece_start_ns[first + 1 : last]
        return self.piece_start_ns, ends, self.piece_row

    def within(
        self, thread: int, start_ns: int, end_ns: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The innermost rows of a thread during a time, and for how long each piece of them
        lasted.
        """
        first, last = self.threads.get(thread, (0, 0))
        if first == last or end_ns <= start_ns:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        starts, rows = self.piece_start_ns[first:last], self.piece_row[first:last]
        low = max(int(np.searchsorted(starts, start_ns, side="right")) - 1, 0)
        high = int(np.searchsorted(starts, end_ns, side="left"))
        begins = np.clip(starts[low:high], start_ns, end_ns)
        ends = np.append(begins[1:], end_ns) if len(begins) else begins
        return rows[low:high], ends - begins

    def above(self, flags: NDArray[np.bool_]) -> NDArray[np.int64]:
        """One element a row of ``Spans``: itself or the nearest around it that is wanted; NONE."""
        nearest = np.full(len(self.parent), NONE, np.int64)
        result, parent, is_wanted = nearest.tolist(), self.parent.tolist(), flags.tolist()
        for row in self.rows.tolist():
            if is_wanted[row]:
                result[row] = row
            elif parent[row] >= 0:
                result[row] = result[parent[row]]
        return np.array(result, np.int64)

    def totals(self, own_values: NDArray[np.int64]) -> NDArray[np.int64]:
        """One element a row of ``Spans``: its own figure and those of all that lie in it."""
        result, parent = own_values.tolist(), self.parent.tolist()
        for row in self.rows.tolist()[::-1]:
            if parent[row] >= 0:
                result[parent[row]] += result[row]
        return np.array(result, np.int64)


def by_value(values: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each distinct value with the places where it stands, in ascending order."""
    order = np.argsort(values, kind="stable")
    distinct, first = np.unique(values[order], return_index=True)
    yield from (
        zip(distinct.tolist(), np.split(order, first[1:]), strict=True) if len(distinct) else ()
    )


def nest(trace: ProfilerTrace, kinds: Sequence[Kind]) -> Nesting:
    """Nests the spans of these kinds.

    A span lies in the last one before it that is still open and does not end before it does; ends
    that differ by no more than the trace's resolution are the same. Of two that overlap the later
    one counts as the inner.
    """
    spans = trace.spans
    rows = spans.of(kinds)
    rows = rows[np.argsort(spans.thread[rows], kind="stable")]
    parent = [NONE] * len(spans)
    times: list[int] = []
    owners: list[int] = []
    threads: dict[int, tuple[int, int]] = {}
    open_rows: list[int] = []
    open_ends: list[int] = []
    current, first, latest = NONE, 0, 0
    slack = trace.resolution_ns

    def close(until_ns: int | None, end_ns: int) -> None:
        """Closes what has ended by ``until_ns`` (None: everything), and what ends before
        ``end_ns`` does.
        """
        nonlocal latest
        while open_rows and (
            until_ns is None or open_ends[-1] <= until_ns or open_ends[-1] + slack < end_ns
        ):
            ended = open_ends[-1] if until_ns is None else min(open_ends[-1], until_ns)
            latest = max(latest, ended)
            open_rows.pop()
            open_ends.pop()
            times.append(latest)
            owners.append(open_rows[-1] if open_rows else NONE)

    columns = (rows, spans.thread[rows], spans.start_ns[rows], spans.end_ns[rows])
    for row, thread, start, end in zip(*(column.tolist() for column in columns), strict=True):
        if thread != current:
            close(None, 0)
            threads[current] = first, len(times)
            current, first, latest = thread, len(times), start
        close(start, end)
        if open_rows:
            parent[row] = open_rows[-1]
        open_rows.append(row)
        open_ends.append(end)
        latest = max(latest, start)
        times.append(latest)
        owners.append(row)
    close(None, 0)
    threads[current] = first, len(times)

    starts, owner = np.array(times, np.int64), np.array(owners, np.int64)
    lasted = np.diff(starts, append=starts[-1:]) if len(starts) else starts
    self_ns = np.zeros(len(spans), np.int64)
    # A thread's last piece has no owner, so no time passes from one thread to the next.
    busy = owner >= 0
    np.add.at(self_ns, owner[busy], lasted[busy])
    return Nesting(
        rows=rows,
        parent=np.array(parent, np.int64),
        self_ns=self_ns,
        piece_start_ns=starts,
        piece_row=owner,
        threads=threads,
    )
