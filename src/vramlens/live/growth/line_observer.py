"""Watching a few early steps line by line: which of the user's lines made which tensors and
autograd nodes.

On a CPU nobody keeps a history of allocations. So the first steps of a watch are traced, for as
long as that costs some hundredths of a second in all: at each of the user's lines, what is new among
the youngest objects belongs to the line before, and so do the autograd nodes whose numbers were given
out meanwhile. It makes way for debuggers and coverage.
"""

from __future__ import annotations

import gc
import sys
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from threading import Thread
from time import thread_time
from typing import Any

from vramlens.capture.process.late_errors import raise_after_callback
from vramlens.capture.process.thread_trace import C_TRACE, can_trace, set_trace
from vramlens.live.growth.ration import Ration
from vramlens.live.growth.youngest import Youngest
from vramlens.live.heap.objects import frames_from, is_own_file, is_users
from vramlens.live.heap.tensors import Storage, TorchObjects

_CALL, _EXCEPTION, _LINE, _RETURN = 0, 1, 2, 3
_FREE_SECONDS, _SHARE = 0.01, 0.0005
_LONGEST_SECONDS = 0.05  # for one step
_SECONDS_AN_EVENT = 2.5e-6
_MOST_SEGMENTS = 200_000
_DEEPEST = 200
_NEARLY_ALL = 0.95
"""Of the bytes: a line that makes so much is the one to name, whatever little is kept beside it. With
three quarters, the largest of four layers would stand for all.
"""

_STARTS_AND_JOINS = set(map(id, (Thread.start.__code__, Thread.join.__code__)))
"""Meanwhile a thread is at work: what is new after them was made at its lines, which are not seen."""

Line = tuple[str, int, str]
"""A line of the user's: file, line, function."""
Stack = tuple[Line, ...]
"""Lines of the user's functions, outermost first."""


class Observer:
    """Traces steps on the thread that begins them.

    Attributes:
        steps: steps that were traced from beginning to end.
        lines: lines of the user's that ran in them, with in how many.
    """

    def __init__(self, torch: TorchObjects) -> None:
        self._torch = torch
        self.steps: set[int] = set()
        self.lines: Counter[tuple[str, int]] = Counter()
        self._lines_of_step: set[tuple[str, int]] = set()
        self._by_storage: dict[tuple[int, int], tuple[int, Stack]] = {}
        self._segments: list[tuple[int, Stack]] = []  # up to which node number, made at which lines
        self._segment_starts: list[int] = []
        self._stack: list[tuple[int, str, int, str]] = []  # id of the frame, file, line, function
        self._users: dict[str, bool] = {}
        self._known: set[tuple[int, int]] = set()
        self._collections = (0, 0)  # counts of the older generations
        self._youngest = Youngest(torch)
        self._sequence = 0
        self._has_met_thread = False  # since the last look
        self._step = 0
        self._ration = Ration(_FREE_SECONDS, _SHARE)
        self._events = 0
        self._thread = 0
        self._callback: Any = None

    @property
    def rations(self) -> tuple[Ration, ...]:
        """What tracing may take."""
        return (self._ration,)

    @property
    def spent_seconds(self) -> float:
        """What tracing has taken."""
        return self._ration.spent

    def begin(self, step: int, frame: Any) -> None:
        """Traces what follows as a step, if there is time left for it and nobody else traces.

        Args:
            frame: the frame that runs on.
        """
        if self._ration.left <= 0 or self._callback is not None:
            return
        if sys.gettrace() is not None or not can_trace():
            return
        if not any(running is frame for running in frames_from(sys._getframe())):
            return  # another thread's
        began = thread_time()
        self._find(frame)
        self._step, self._events = step, 0
        self._thread = threading.get_ident()
        self._sequence = self._torch.sequence_now() or 0
        self._known = {
            (id(tensor), address) for tensor, (address, _) in self._placed(self._youngest.all())
        }
        self._begin_segment()
        self._ration.spent += thread_time() - began
        self._callback = C_TRACE(self._event)
        set_trace(self._callback, self)

    def end(self, *, whole: bool = True) -> None:
        """Ends the tracing of a step.

        Args:
            whole: whether the step came to its end.
        """
        if self._callback is None:
            return
        if threading.get_ident() != self._thread:
            return
        tracer: Any = sys.gettrace()
        if tracer is self:
            set_trace(None, None)
            self._close()
            if whole:
                self.steps.add(self._step)
        self._callback = None
        self.lines.update(self._lines_of_step)
        self._lines_of_step.clear()
        self._ration.spent += self._events * _SECONDS_AN_EVENT
        self._stack, self._known = [], set()

    def made(self, storage: Storage, step: int | None) -> Stack | None:
        """The lines that made a storage in a step; None where that was not seen."""
        step_and_stack = self._by_storage.get((storage.address, storage.size_bytes))
        return (
            step_and_stack[1] if step_and_stack is not None and step_and_stack[0] == step else None
        )

    def step_of(self, storage: Storage) -> int | None:
        """The step in which a storage was made, if it was one that was traced."""
        step_and_stack = self._by_storage.get((storage.address, storage.size_bytes))
        return None if step_and_stack is None else step_and_stack[0]

    def made_node(self, number: int) -> Stack | None:
        """The lines that made the autograd node of a sequence number; None where that was not
        seen.
        """
        place = bisect_right(self._segment_starts, number) - 1
        if place < 0 or number >= self._segments[place][0]:
            return None
        return self._segments[place][1]

    def _event(self, _self: Any, frame: Any, what: int, _argument: Any) -> int:
        try:
            file = frame.f_code.co_filename
            self._events += 1
            if not (self._users[file] if file in self._users else self._is_users(file)):
                if what == _CALL:
                    frame.f_trace_lines = False
                    self._has_met_thread |= id(frame.f_code) in _STARTS_AND_JOINS
            elif what != _EXCEPTION:
                self._close()
                self._move(frame, what)
                if self._events * _SECONDS_AN_EVENT - self._ration.left > _LONGEST_SECONDS:
                    set_trace(None, None)  # a long step: what was seen so far is all there will be
        except BaseException as error:
            try:  # as Python ends this module has no "suppress" any more
                set_trace(None, None)
                raise_after_callback(error)
            except Exception:
                pass
        return 0

    def _move(self, frame: Any, what: int) -> None:
        """Brings the stack to where an event of a user's function is."""
        stack = self._stack
        if what == _LINE:
            if not stack or stack[-1][0] != id(frame):
                self._find(frame)
            entry = self._stack[-1] = _entry(frame)
            self._lines_of_step.add(entry[1:3])
        elif what == _CALL:
            if stack and stack[-1][0] == id(frame.f_back):
                stack[-1] = _entry(frame.f_back)
            stack.append(_entry(frame))
        elif what == _RETURN:
            while stack and stack.pop()[0] != id(frame):
                pass

    def _find(self, frame: Any) -> None:
        """Sets the stack anew: a generator or a callback that C code runs."""
        entries = map(_entry, frames_from(frame))
        users = (entry for entry in entries if self._is_users(entry[1]))
        self._stack = list(islice(users, _DEEPEST))[::-1]

    def _close(self) -> None:
        """What is new since the last look belongs to the lines of the present stack."""
        began = thread_time()
        stack: Stack = tuple((file, line, name) for _, file, line, name in self._stack)
        number = self._torch.sequence_now() or 0
        if number > self._sequence and len(self._segments) < _MOST_SEGMENTS:
            self._segment_starts.append(self._sequence)
            self._segments.append((number, stack))
        self._sequence = number
        is_in_order = gc.get_count()[1:] == self._collections
        new_tensors = self._youngest.made_since() if is_in_order else self._youngest.all()
        for tensor, place in self._placed(new_tensors):
            mark = (id(tensor), place[0])
            if is_in_order or mark not in self._known:
                before = self._by_storage.get(place)
                is_new = before is None or not self._torch.looks_again(tensor)
                if is_new and not self._has_met_thread:
                    self._by_storage[place] = (self._step, stack)
            self._known.add(mark)
        self._begin_segment()
        self._ration.spent += thread_time() - began

    def _begin_segment(self) -> None:
        """What is made from now on is new."""
        self._has_met_thread = False
        self._youngest.mark()
        self._collections = gc.get_count()[1:]

    def _placed(self, tensors: list[Any]) -> Iterator[tuple[Any, tuple[int, int]]]:
        """Yields tensors with the address and bytes of their storages."""
        with self._torch.torch._C.DisableTorchFunction():
            for tensor in tensors:
                place = self._torch.place_of(tensor)
                if place is not None:
                    yield tensor, place

    def _is_users(self, file: str) -> bool:
        is_users_file = self._users.get(file)
        if is_users_file is None:
            is_users_file = self._users[file] = is_users(file) and not is_own_file(file)
        return is_users_file


def _entry(frame: Any) -> tuple[int, str, int, str]:
    """A frame's identity, its file, line and function."""
    code = frame.f_code
    return id(frame), code.co_filename, frame.f_lineno or 0, code.co_name


def common_line(stacks: list[tuple[Stack, int]]) -> Line | None:
    """The line to name for several stacks with weights: the innermost that made nearly all; of
    lines in one function that share it, the heaviest.
    """
    weighted = [(stack, max(weight, 1)) for stack, weight in stacks if stack]
    enough = _NEARLY_ALL * sum(weight for _, weight in weighted)
    named: Line | None = None
    for depth in range(_DEEPEST):
        weights: Counter[Line] = Counter()
        for stack, weight in weighted:
            if depth < len(stack):
                weights[stack[depth]] += weight
        if not weights or sum(weights.values()) < enough:
            break  # most was made by the line around
        heaviest = max(weights, key=weights.__getitem__)
        if weights[heaviest] >= enough:
            named = heaviest
            weighted = [
                (stack, weight)
                for stack, weight in weighted
                if heaviest in stack[depth : depth + 1]
            ]
            continue
        if len({(file, function) for file, _, function in weights}) == 1:
            named = heaviest
        break
    return named


def voted_line(by_step: dict[int, list[tuple[Stack, int]]], whole: set[int]) -> Line | None:
    """The line that most of the traced steps name, by the bytes that were seen to be made in them.

    Single looks can come a line too late, or miss what only a graph holds.

    Args:
        by_step: stacks with their bytes, by the step that they were seen in.
        whole: steps that were traced from beginning to end; others count only where there is none
            of these.
    """
    votes: Counter[Line] = Counter()
    for stacks in [by_step[step] for step in by_step if step in whole] or by_step.values():
        line = common_line(stacks)
        if line is not None:
            votes[line] += 1 + sum(weight for _, weight in stacks)
    # Of those with as many votes the first step's, which was traced in full.
    return max(votes, key=votes.__getitem__, default=None)
