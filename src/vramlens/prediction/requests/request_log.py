"""What a program asked of the allocator and gave back, in order, with the Python stack and
module of each request.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

FIRST_POOL = 1 << 20
"""Numbers of pools, beyond those of streams."""
OWN_FOLDER = "vramlens/prediction/"
"""Where the frames lie that only a prediction has; with slashes on every system."""
_MOST_FRAMES = 255  # torch/csrc/profiler/python/combined_traceback.cpp
NO_STACK = 0
_LEAST_BYTES = 1
_PART = "vramlens_guessed_part"

ALLOCATE, FREE, EMPTY_CACHE, COMPLETE = range(4)
"""What happens. A block that is freed is complete at once, unless an event of its own says when."""
_LAST_NODE = (1 << 63) - 1
"""Nodes that only add to a gradient have the largest number that there is."""
_OF_ROWS = ("sizes", "streams", "stacks", "marks", "nodes_made", "nodes_run")
_COLUMNS = ("events", *_OF_ROWS)


@dataclass(frozen=True, slots=True)
class Undecided:
    """What is requested only because a made-up number decides so.

    Attributes:
        rows: that were requested so.
        successors: rows that gave way to such a one, as a loop's result does to the next turn's:
            without it they live as long as it.
    """

    rows: frozenset[int] = frozenset()
    successors: Mapping[int, int] = field(default_factory=dict)

    def last_successor(self, row: int) -> int:
        """The row as long as which another lives."""
        while row in self.successors:
            row = self.successors[row]
        return row


class RequestLog:
    """Requests by row, and what happened in order.

    Attributes:
        events: ALLOCATE, FREE, EMPTY_CACHE or COMPLETE with the row that it is about, in order; each is added
            at once, as a tensor may go between any two steps of this code, and in another thread.
        sizes, streams, stacks, marks: of each row: bytes requested, its stream, the numbers of its
            stack and module.
        allocated_bytes, peak_bytes: live now, and the most so far, in blocks of 512 bytes.
        limit_bytes, limit_reached: how much may be allocated, and what is called with the row of a
            request that is more.
        mark: the path of the module that runs now.
        conf: allocator settings that the program itself chose.
        guessed: rows whose size hangs on a number that values decide, with that number as it was
            guessed, and how many times it may be at most.
        bounds: rows whose size is not sure, with the least and the most bytes.
        undecided: what was requested only because a made-up number decided so.
        used_aside: rows that another stream than their own used, too.
        waited_at: how many events there were whenever the host waited for the card.
        drawn_at: the rows before which it was drawn how many random numbers are below a limit.
        nodes_made: of each row, how many nodes of autograd's graph this thread had made before.
        nodes_run: of each row, the number of the node whose backward asked for it; -1 for none.
        fused_from: rows that torch.compile may never ask for, with the rows that their operator
            read.
        written_by_fusion: rows that it asks for, of operators that it fuses, with the same.
    """

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []
        self.sizes: list[int] = []
        self.streams: list[int] = []
        self.stacks: list[int] = []
        self.marks: list[str] = []
        self.stream = 0
        self.mark = ""
        self.conf = ""
        self.guessed: dict[int, tuple[int, int]] = {}
        self.bounds: dict[int, tuple[int, int]] = {}
        self.undecided = Undecided()
        self.used_aside: set[int] = set()
        self.waited_at: list[int] = []
        self.drawn_at: list[int] = []
        self.nodes_made: list[int] = []
        self.nodes_run: list[int] = []
        self.allocated_bytes = self.peak_bytes = 0
        self.limit_bytes: float = math.inf
        self.limit_reached: Callable[[int], None] = _ignore
        self.fused_from: dict[int, tuple[int, ...]] = {}
        self.written_by_fusion: dict[int, tuple[int, ...]] = {}
        self._row_of_storage: dict[int, tuple[int, Any]] = {}
        self.stack_table = RequestStacks()

    @property
    def kinds(self) -> list[int]:
        """What happened, event by event."""
        return [kind for kind, _ in self.events]

    @property
    def rows(self) -> list[int]:
        """The row that each event is about."""
        return [row for _, row in self.events]

    def note(self, tensor: Any) -> None:
        """A tensor on the device: its storage is requested, unless it is there already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._row_of_storage:
            return
        size = storage.nbytes()
        if size == 0:
            return
        self._keep(storage, self.allocate(size))

    def owns(self, storage: Any) -> bool:
        """Whether a storage was noted."""
        return storage._cdata in self._row_of_storage

    def is_since(self, tensor: Any, row: int) -> bool:
        """Whether a tensor was requested as this row or later."""
        own_row = self.row_of(tensor)
        return own_row is not None and own_row >= row

    def guess_of(self, tensor: Any) -> tuple[int, int] | None:
        """The guessed number that a tensor's size hangs on, and how many times it may be at most;
        None where its size is known.
        """
        part: tuple[int, int] | None = getattr(tensor, "__dict__", {}).get(_PART)
        entry = self._row_of_storage.get(tensor.untyped_storage()._cdata)
        return part if part is not None or entry is None else self.guessed.get(entry[0])

    def most_times(self, tensors: list[Any]) -> int:
        """How many times as large as they are some tensors may be; 0 where their sizes are known."""
        guesses = [self.guess_of(tensor) for tensor in tensors if tensor.layout is torch.strided]
        return max((guess[1] for guess in guesses if guess is not None), default=0)

    def hangs_on_guess(self, tensor: Any, number: int, most: int) -> None:
        """Notes that a tensor's size hangs on a guessed number, which may be so many times it."""
        entry = self._row_of_storage.get(tensor.untyped_storage()._cdata)
        if entry is not None:
            row = entry[0]
            self.guessed[row] = number, most
            self.bounds[row] = 1, most * self.sizes[row]

    def hangs_on_part(self, tensor: Any, number: int) -> None:
        """Notes that a part of a tensor has a guessed number of rows of its own: no more, and fewer
        where the whole has fewer.
        """
        setattr(tensor, _PART, (number, 1))

    def may_be_missing(self, tensor: Any) -> None:
        """Notes that a tensor's request may never be made, for values decide it."""
        row = self.row_of(tensor)
        if row is not None:
            self.bounds[row] = _LEAST_BYTES, self.sizes[row]

    def may_vanish(self, tensor: Any, inputs: list[Any]) -> None:
        """Notes that a tensor's request may never be made, as it can be made again of others."""
        row = self.row_of(tensor)
        if row is not None and row not in self.bounds:
            self.bounds[row] = _LEAST_BYTES, self.sizes[row]
            rows = (self.row_of(source) for source in inputs)
            self.fused_from[row] = tuple(source for source in rows if source is not None)

    def must_exist(self, tensor: Any) -> None:
        """Notes that a tensor's request is made after all."""
        row = self.row_of(tensor)
        sources = None if row is None else self.fused_from.pop(row, None)
        if row is not None and sources is not None:
            self.written_by_fusion[row] = sources
            del self.bounds[row]

    def fusible_sources(self, row: int) -> tuple[int, ...]:
        """The rows that an operator which torch.compile fuses made a row of."""
        return self.fused_from.get(row) or self.written_by_fusion.get(row, ())

    def row_of(self, tensor: Any) -> int | None:
        """The row of a tensor's storage; None where it was never requested."""
        if tensor.layout is not torch.strided:
            return None
        entry = self._row_of_storage.get(tensor.untyped_storage()._cdata)
        return None if entry is None else entry[0]

    def with_sizes(self, choose: Callable[[int, int, int], int]) -> RequestLog:
        """A copy in which every size that is not sure is another.

        Args:
            choose: (size, least, most) -> the size instead.
        """
        copy = self.plain()
        for row, (least_bytes, most_bytes) in self.bounds.items():
            copy.sizes[row] = choose(self.sizes[row], least_bytes, most_bytes)
        return copy

    def without_undecided(self) -> RequestLog:
        """A copy in which what a made-up number decided takes as good as nothing."""
        freed = {row: place for place, (kind, row) in enumerate(self.events) if kind == FREE}
        copy = self.with_later_frees(
            {
                row: freed.get(self.undecided.last_successor(row), len(self.events))
                for row in self.undecided.successors
            }
        )
        for row in self.undecided.rows:
            copy.sizes[row] = _LEAST_BYTES
        return copy

    def with_later_frees(self, last_events: Mapping[int, int]) -> RequestLog:
        """A copy with some rows freed after another event than their own."""

        def place_of(numbered: tuple[int, tuple[int, int]]) -> float:
            place, (kind, row) = numbered
            return max(place, last_events.get(row, 0) + 0.5) if kind == FREE else place

        later = self.plain()
        later.events = [event for _, event in sorted(enumerate(self.events), key=place_of)]
        return later

    def with_later_requests(self, rows: Sequence[int], place: int) -> RequestLog:
        """A copy in which some rows are requested only before a later event; rows are numbered anew,
        in the order of their requests.
        """
        moved = {(ALLOCATE, row) for row in rows}
        before = [event for event in self.events[:place] if event not in moved]
        events = [*before, *((ALLOCATE, row) for row in rows), *self.events[place:]]
        in_order = [row for kind, row in events if kind == ALLOCATE]
        number_of = {row: number for number, row in enumerate(in_order)}
        later = self.plain()
        later.events = [(kind, number_of.get(row, row)) for kind, row in events]
        for name in _OF_ROWS:
            column = getattr(self, name)
            setattr(later, name, [column[row] for row in in_order])
        later.bounds = {number_of[row]: bounds for row, bounds in self.bounds.items()}
        return later

    def first_rows(self, count: int) -> RequestLog:
        """A copy of what happened until so many rows were requested."""
        earlier = self.plain()
        earlier.events = self.events[: self._place_of(count)]
        for name in _OF_ROWS:
            del getattr(earlier, name)[count:]
        for name in ("bounds", "fused_from", "written_by_fusion"):
            column = getattr(earlier, name)
            setattr(earlier, name, {row: value for row, value in column.items() if row < count})
        return earlier

    def _place_of(self, row: int) -> int:
        """The event that requests a row; the number of events where none does."""
        request = (ALLOCATE, row)
        return self.events.index(request) if row < len(self.sizes) else len(self.events)

    def note_use(self, tensor: Any, stream: int) -> None:
        """Notes that a stream uses a tensor."""
        row = self.row_of(tensor)
        if row is not None and stream != self.streams[row]:
            self.used_aside.add(row)

    def note_wait(self) -> None:
        """Notes that the host waits until the card has done what it was given."""
        self.waited_at.append(len(self.events))

    def note_draw(self) -> None:
        """Notes that it is drawn how many random numbers are below a limit."""
        self.drawn_at.append(len(self.sizes))

    def now(self) -> tuple[int, int]:
        """The row that the next request will have, and the number of the stack that runs now."""
        return len(self.sizes), self.stack_table.number()

    def resized(self, storage: Any, size: int) -> None:
        """A storage is given another size: the new one is requested before the old one is freed."""
        entry = self._row_of_storage.pop(storage._cdata, None)
        if size:
            self._keep(storage, self.allocate(size))
        if entry is not None:
            self.free(entry[0])

    def _keep(self, storage: Any, row: int) -> None:
        """Has a row freed with its storage, whose Python object lives exactly as long
        (torch/csrc/Storage.cpp).
        """
        key = storage._cdata

        def gone(_: Any) -> None:
            self._gone(key)

        self._row_of_storage[key] = row, weakref.ref(storage, gone)

    def scratch(self, size: int, bounds: tuple[int, int] | None = None) -> None:
        """A kernel's workspace: requested, and freed at once; with its least and most bytes where
        it is not sure.
        """
        if size > 0:
            row = self._request(size)  # a library that is refused one does without
            self.free(row)
            if bounds is not None:
                self.bounds[row] = bounds

    def allocate(self, size: int) -> int:
        """The row of a new request."""
        row = self._request(size)
        if self.allocated_bytes > self.limit_bytes:
            self.limit_reached(row)
        return row

    def _request(self, size: int) -> int:
        row = len(self.sizes)
        self.sizes.append(size)
        self.streams.append(self.stream)
        self.stacks.append(self.stack_table.number())
        self.marks.append(self.mark)
        self.nodes_made.append(torch._C._autograd._get_sequence_nr())
        self.nodes_run.append(_node_that_runs())
        self.events.append((ALLOCATE, row))
        self.allocated_bytes += _rounded(size)
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        return row

    def free(self, row: int) -> None:
        """Gives a row back."""
        self.events.append((FREE, row))
        self.allocated_bytes -= _rounded(self.sizes[row])

    @property
    def queue(self) -> int:
        """The stream that kernels run on: graphs have pools of their own, and are all captured on
        one stream (torch/cuda/graphs.py, default_capture_stream).
        """
        return min(self.stream, FIRST_POOL)

    def empty_cache(self) -> None:
        """Everything that is cached goes back to the driver."""
        self.events.append((EMPTY_CACHE, -1))

    def clear(self) -> None:
        """Forgets everything so far; nothing of it may be alive."""
        for name in _COLUMNS:
            getattr(self, name).clear()
        self._row_of_storage.clear()
        self.guessed.clear()
        self.bounds.clear()
        self.undecided = Undecided()
        self.used_aside.clear()
        self.waited_at.clear()
        self.drawn_at.clear()
        self.fused_from.clear()
        self.written_by_fusion.clear()
        self.allocated_bytes = self.peak_bytes = 0

    def plain(self) -> RequestLog:
        """A copy without the storages, which another process can be given."""
        copy = RequestLog()
        for name in _COLUMNS:
            setattr(copy, name, list(getattr(self, name)))
        copy.bounds = dict(self.bounds)
        copy.undecided = self.undecided
        copy.used_aside = set(self.used_aside)
        copy.waited_at = list(self.waited_at)
        copy.drawn_at = list(self.drawn_at)
        copy.fused_from = dict(self.fused_from)
        copy.written_by_fusion = dict(self.written_by_fusion)
        copy.allocated_bytes, copy.peak_bytes = self.allocated_bytes, self.peak_bytes
        copy.stack_table.stacks = self.stack_table.stacks
        return copy

    def _gone(self, key: int) -> None:
        entry = self._row_of_storage.pop(key, None)
        if entry is not None:
            self.free(entry[0])


def _ignore(row: int) -> None:
    """Where no limit is watched."""


def _node_that_runs() -> int:
    """The number of the node that autograd runs in this thread; -1 where it runs none."""
    node: Any = torch._C._current_autograd_node()
    return -1 if node is None else min(int(node._sequence_nr()), _LAST_NODE)


def _rounded(size: int) -> int:
    return -(-size // 512) * 512  # kMinBlockSize, c10/core/AllocatorConfig.h


class RequestStacks:
    """Python stacks, each kept once.

    Attributes:
        driver: a function of ours that trains as the user's program would: its frame, and those
            that lead to it, are no part of that.
        hook: the user's function that stands in its place.
        stand_ins: functions of ours that do what one of PyTorch's does, by their code, with the frame that a
            GPU's run has in their place.
    """

    def __init__(self) -> None:
        self._frames: dict[tuple[CodeType, int], dict[str, Any] | None] = {}
        self.stand_ins: dict[CodeType, dict[str, Any]] = {}
        self.driver: CodeType | None = None
        self.hook: CodeType | None = None
        self._numbers: dict[tuple[tuple[CodeType, int], ...], int] = {(): NO_STACK}
        self._number_of_positions: dict[tuple[int, ...], int] = {}
        self.stacks: list[list[dict[str, Any]]] = [[]]

    def number(self) -> int:
        """The number of the stack that runs now; autograd's own thread has none, as on a GPU.

        Code and position of each frame tell stacks that were seen before: to ask for a frame's line
        takes longer than all else.
        """
        innermost: FrameType = sys._getframe(2)
        frame: FrameType | None = innermost
        positions: list[int] = []
        while frame is not None and len(positions) < 2 * _MOST_FRAMES:
            code = frame.f_code
            if code is self.driver:
                positions.append(id(self.hook))
                break
            positions += id(code), frame.f_lasti  # places keep the code alive
            frame = frame.f_back
        key = tuple(positions)
        number = self._number_of_positions.get(key)
        if number is None:
            number = self._number_of_positions[key] = self._number_of_lines(innermost)
        return number

    def _number_of_lines(self, innermost: FrameType) -> int:
        """The number of the stack that a frame ends."""
        frame: FrameType | None = innermost
        places: list[tuple[CodeType, int]] = []
        while frame is not None and len(places) < _MOST_FRAMES:
            if frame.f_code is self.driver:
                hook = self.hook
                places += [] if hook is None else [(hook, hook.co_firstlineno)]
                break
            places.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        key = tuple(places)
        number = self._numbers.get(key)
        if number is None:
            frames = [shown for place in places if (shown := self._shown(place)) is not None]
            number = self._numbers[key] = len(self.stacks)
            self.stacks.append(frames)
        return number

    def _shown(self, place: tuple[CodeType, int]) -> dict[str, Any] | None:
        if place not in self._frames:
            code, line = place
            shown = {"filename": code.co_filename, "line": line, "name": code.co_name}
            stand_in = self.stand_ins.get(code)
            self._frames[place] = stand_in if is_only_predicted(code.co_filename) else shown
        return self._frames[place]


def is_of_prediction(file: str) -> bool:
    """True where a frame's file is one of this package."""
    return OWN_FOLDER in file.replace("\\", "/")


def is_only_predicted(file: str) -> bool:
    """Whether a frame is of what only a prediction goes through: this package, and machinery of
    PyTorch's.
    """
    return is_of_prediction(file) or file.endswith(
        (
            "torch/utils/_python_dispatch.py",
            "torch/_ops.py",
            "torch/_compile.py",
            "torch/_dynamo/eval_frame.py",
        )
    )
