"""Undecided requests: those that were made only because a made-up number decided so.

A loop that waits for convergence takes as many turns as made-up numbers let it, and keeps what each
turn keeps. Sure is what the loop requests before such a number can end it for the first time; of a
branch nothing is sure. Training is judged by its steps as they are: nobody asks what a training loop
takes that ends after its first step, or a step whose loss is never finite.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vramlens.prediction.made_up_decisions import Decision
from vramlens.prediction.requests.request_log import RequestLog, Undecided
from vramlens.prediction.succession import Succession

_OUTSIDE, _WITHOUT_FRAMES = -1, -2
"""Ways of a stack that does not pass, and of autograd's own thread, which may."""

Moment = tuple[int, int]
"""The row of the next request, and the number of the stack that ran."""
_Ask = tuple[int, int, int]
"""The row of the next request, the way to the loop, and the line within that asked."""


def undecided_requests(
    log: RequestLog,
    decisions: Iterable[Decision],
    asked: Sequence[Moment],
    stepped: Sequence[Moment],
) -> Undecided:
    """What would not be requested, had made-up numbers decided otherwise.

    Args:
        asked: when the user's code was given a made-up number.
        stepped: when an optimizer stepped.
    """
    succession = Succession(log)
    for decision in decisions:
        passages = _Passages(log.stack_table.stacks, decision)
        asks = passages.asks_among(asked, decision)
        of_steps = {passages.ways[stack] for _, stack in stepped} | passages.ways_of_backward
        for execution in _executions(passages, log.stacks):
            if execution.way in of_steps:
                continue
            first = execution.first if decision.asked_by is None else _first_asked(execution, asks)
            if first is not None and first <= execution.last:
                succession.without(range(first, execution.last + 1), execution.next)
    return succession.undecided()


def most_turns(
    log: RequestLog, decisions: Iterable[Decision], asked: Sequence[Moment]
) -> dict[tuple[str, int], int]:
    """The most turns that a loop took in which made-up numbers decide its end, by file and line; as
    far as a turn requests memory.
    """
    turns: dict[tuple[str, int], int] = {}
    for decision in decisions:
        if not decision.is_loop or decision.asked_by is None:
            continue
        passages = _Passages(log.stack_table.stacks, decision)
        asks = passages.asks_among(asked, decision)
        counts = (_turns_of(execution, asks) for execution in _executions(passages, log.stacks))
        place = decision.file, decision.line
        turns[place] = max(turns.get(place, 0), max(counts, default=0))
    return {place: count for place, count in turns.items() if count}


class _Passages:
    """Which stacks pass through the lines of a decision.

    Attributes:
        ways: by number of the stack, the number of the way from the program's start to there.
        lines: by number of the stack, the line within.
        ways_of_backward: those to a branch in which a backward pass was called.
    """

    def __init__(self, stacks: Sequence[Sequence[dict[str, Any]]], decision: Decision) -> None:
        self._numbers: dict[tuple[tuple[str, int], ...], int] = {}
        self.ways: list[int] = []
        self.lines: list[int] = []
        self.ways_of_backward: set[int] = set()
        for frames in stacks:
            self._add(frames, decision)

    def asks_among(self, asked: Sequence[Moment], decision: Decision) -> list[_Ask]:
        """The moments that may decide it, in order."""
        return [
            (row, self.ways[stack], self.lines[stack])
            for row, stack in asked
            if self.ways[stack] >= 0 and self.lines[stack] <= (decision.asked_by or 0)
        ]

    def _add(self, frames: Sequence[dict[str, Any]], decision: Decision) -> None:
        way, line = (_OUTSIDE if frames else _WITHOUT_FRAMES), 0
        for depth in reversed(range(len(frames))):  # the innermost frame is the first
            frame = frames[depth]
            if decision.holds(frame["filename"], frame["line"]):
                outer = tuple((call["filename"], call["line"]) for call in frames[depth + 1 :])
                way, line = self._numbers.setdefault(outer, len(self._numbers)), frame["line"]
                if not decision.is_loop and any(map(_is_backward, frames[:depth])):
                    self.ways_of_backward.add(way)
                break
        self.ways.append(way)
        self.lines.append(line)


def _is_backward(frame: dict[str, Any]) -> bool:
    file = frame["filename"].replace("\\", "/")
    return bool(frame["name"] == "backward" and file.endswith("torch/autograd/__init__.py"))


@dataclass(frozen=True, slots=True)
class _Execution:
    """A loop or branch, once from its begin to its end.

    Attributes:
        way: from the program's start to it.
        first, last: the rows within.
        next: the first row after it.
    """

    way: int
    first: int
    last: int
    next: int


def _executions(passages: _Passages, stacks: Sequence[int]) -> Iterator[_Execution]:
    """The rows within, as far as they follow each other."""
    ways = np.array(passages.ways, np.int64)[np.array(stacks, np.int64)]
    rows = np.flatnonzero(ways != _WITHOUT_FRAMES)
    if not len(rows):
        return
    begins = np.flatnonzero(np.append(True, np.diff(ways[rows]) != 0))
    ends = np.append(begins[1:], len(rows))
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        way = int(ways[rows[begin]])
        if way != _OUTSIDE:
            following = int(rows[end]) if end < len(rows) else len(stacks)
            yield _Execution(way, int(rows[begin]), int(rows[end - 1]), following)


def _turns_of(execution: _Execution, asks: Sequence[_Ask]) -> int:
    """How many turns asked: a turn asks for its numbers from above to below."""
    turns, last_line = 0, 0
    for row, way, line in asks[bisect_left(asks, (execution.first,)) :]:
        if row > execution.last + 1:
            break
        if way == execution.way:
            turns, last_line = turns + (turns == 0 or line <= last_line), line
    return turns


def _first_asked(execution: _Execution, asks: Sequence[_Ask]) -> int | None:
    """The row after the last number of a loop's first turn that may end it; None where none may.

    A turn asks for its numbers from above to below; one that stands no lower is the next turn's.
    """
    first, last_line = None, 0
    for row, way, line in asks[bisect_left(asks, (execution.first,)) :]:
        if row > execution.last + 1 or line <= last_line:
            break
        if way == execution.way:
            first, last_line = row, line
    return first
