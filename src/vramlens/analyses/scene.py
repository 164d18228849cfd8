"""A scene: one recording of one device, and all that its findings rest on, each computed once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import COMPUTED
from vramlens.analyses.attribution.named_shapes import Shape, shapes_of
from vramlens.analyses.attribution.steps import PATTERN
from vramlens.analyses.attribution.training import pass_starts
from vramlens.analyses.evaluation_passes import Evaluation, evaluation_of
from vramlens.analyses.explanation import OomVerdict, Peak
from vramlens.analyses.extent import Extent
from vramlens.analyses.failure.ending import went_on
from vramlens.analyses.failure.failed_request import Failure, Outside
from vramlens.analyses.failure.oom import failure_of, verdict_of
from vramlens.analyses.failure.surroundings import message_for, outside_of
from vramlens.analyses.finding import Finding
from vramlens.analyses.leaks.growth import leaks_at
from vramlens.analyses.leaks.outside_pytorch import external_leak
from vramlens.analyses.leaks.rate import TimeToFull, least_that_matters, predicted
from vramlens.analyses.leaks.recorded_leak import RecordedLeak, sized
from vramlens.analyses.memory.fragmentation import Fragmentation, fragmentation_at
from vramlens.analyses.memory.heap import Heap, heap_at
from vramlens.analyses.memory.run_shape import StepPeaks, shape_of, step_peaks
from vramlens.errors import UsageError
from vramlens.ground.place import Place
from vramlens.read.oom.oom_text import OomMessage
from vramlens.trace import DeviceTrace, FailureMeta, OutOfMemory, Trace
from vramlens.units import format_size

_MOVE = re.compile(r"\.(?:cuda\(|to\((?!\s*(?:torch\.(?!device)|[\w.]*dtype\b|[\"']cpu)))")
"""A call that moves tensors to the GPU; with a type it only converts them."""
LINES_ABOVE, LINES_BELOW = 6, 3
"""Around the line a request failed at, whose text a recording has (capture/failure_facts/source_lines.py)."""


@dataclass(frozen=True, eq=False)
class Scene:
    """What finders look at: each part is computed when it is first asked for, and once.

    Attributes:
        view: the device's attribution.
        messages: out-of-memory errors that the program printed, if at hand.
        total_bytes: the device's memory as the person says it; None where not said.
    """

    view: Attribution
    messages: Sequence[OomMessage] = ()
    total_bytes: int | None = None

    @property
    def trace(self) -> Trace:
        """The recording."""
        return self.view.trace

    @property
    def device(self) -> DeviceTrace:
        """The device."""
        return self.view.device

    # How far it came

    @cached_property
    def peak(self) -> Peak:
        """The counters' maxima, and the heap where requested bytes are highest."""
        device = self.device
        # What was there before the first event may once have been more.
        from_the_start = len(device.events) > 0 and not device.reserved.base_bytes
        is_proven = from_the_start and device.whole and device.orphan_events == 0
        return Peak(
            device=device.device,
            requested_bytes=device.requested.peak_bytes,
            allocated_bytes=device.allocated.peak_bytes,
            active_bytes=device.active.peak_bytes,
            reserved_bytes=device.reserved.peak_bytes,
            exact=("requested_bytes", "reserved_bytes") if is_proven else (),
            heap=self.heap_at(device.requested.peak_event),
            shape=shape_of(self.view, self.step_peaks),
        )

    @cached_property
    def step_peaks(self) -> StepPeaks:
        """The requested bytes of every step."""
        return step_peaks(self.view)

    @property
    def peak_name(self) -> str:
        """The highest requested bytes in words, with their step where a later one failed."""
        if self.failed_event is None:
            return "the peak"
        step = self.view.step_of_run(self.view.device.requested.peak_event)
        is_of_failure = step is None or step == self.view.step_of_run(self.failed_event)
        return "the peak" if is_of_failure else f"step {step}'s peak"

    # The failure

    @cached_property
    def message(self) -> OomMessage | None:
        """The error's text of this very failure; None without one."""
        return message_for(self.view, self.messages)

    @cached_property
    def outside(self) -> Outside:
        """What is known of the device's other memory and of the process's limit."""
        return outside_of(self.view, self.message, self.total_bytes)

    @cached_property
    def failure(self) -> Failure | None:
        """The figures of the last failed request; None where nothing failed."""
        return failure_of(self.view, self.outside)

    @cached_property
    def verdict(self) -> OomVerdict | None:
        """The verdict on the failure; None where nothing failed."""
        if self.failure is None:
            return None
        return verdict_of(
            self.view,
            self.failure,
            self.leaking_tensors,
            self.step_peaks,
            self.outside,
            self.heap_at(self.failure.request.event),
            survived=not self.is_ended_by_failure,
        )

    @property
    def failed_event(self) -> int | None:
        """The event of the last failed request; None where nothing failed."""
        return None if self.failure is None else self.failure.request.event

    @property
    def failed_place(self) -> Place | None:
        """The line whose request failed last; None where nothing failed, or nobody knows the line."""
        return None if self.verdict is None else self.verdict.place

    @cached_property
    def is_ended_by_failure(self) -> bool:
        """Whether a failed request was the program's end."""
        return self.failure is not None and not went_on(self.view, self.failure.request)

    @property
    def ending_request(self) -> OutOfMemory:
        """The failed request that was the program's end, for finders that are asked after_failure.

        Raises:
            ValueError: memory running out was not the program's end.
        """
        if self.failure is None or not self.is_ended_by_failure:
            raise ValueError("the program did not end because memory ran out")
        return self.failure.request

    @property
    def ending_event(self) -> int | None:
        """The event of the failed request that was the program's end; None where none was."""
        return self.failed_event if self.is_ended_by_failure else None

    @property
    def ending_failure(self) -> FailureMeta | None:
        """What the recording says of the failure that was the program's end; None where it says nothing."""
        return self.trace.meta.failure if self.is_ended_by_failure else None

    @property
    def ending_expression(self) -> str:
        """What the program was computing when that request failed, as its file has it; "" where the
        recording does not say.
        """
        failure = self.ending_failure
        return "" if failure is None else failure.expression or ""

    @property
    def ending_node(self) -> str:
        """The operation whose gradient was being computed then, as autograd calls it; "" outside of a
        backward pass, or where the recording does not say.
        """
        failure = self.ending_failure
        return "" if failure is None else failure.node or ""

    def source_of(self, place: Place | None) -> str:
        """The text of one of the lines that held the most when that request failed; "" where the
        recording does not have it, or nobody knows the line.
        """
        failure = self.ending_failure
        if failure is None or place is None:
            return ""
        return failure.source.get((place.file, place.line), "")

    def source_above(self, place: Place) -> Iterator[str]:
        """Yields the text of the lines before the one that request failed at, the nearest first."""
        return map(self.source_of, self.lines_above(place))

    def source_below(self, place: Place) -> Iterator[str]:
        """Yields the text of the lines after it, the nearest first."""
        return map(self.source_of, self.lines_below(place))

    def lines_above(self, place: Place) -> Iterator[Place]:
        """Yields the lines before the one that request failed at, of which the text may be known, the nearest
        first.
        """
        return _beside(place, range(-1, -LINES_ABOVE - 1, -1))

    def lines_below(self, place: Place) -> Iterator[Place]:
        """Yields those after it."""
        return _beside(place, range(1, LINES_BELOW + 1))

    def is_in_source(self, pattern: re.Pattern[str]) -> bool:
        """Whether any of those lines, or of the lines that led to that request, fits a pattern."""
        failure = self.ending_failure
        return failure is not None and any(map(pattern.search, failure.source.values()))

    def moves_data(self, place: Place | None) -> bool:
        """Whether one of those lines moves tensors to the GPU, by its text."""
        return _MOVE.search(self.source_of(place)) is not None

    # The memory at a moment

    def heap_at(self, event: int) -> Heap:
        """The heap right after an event."""
        if event not in self._heaps:
            self._heaps[event] = heap_at(self.view, event)
        return self._heaps[event]

    @property
    def advice_event(self) -> int:
        """The moment that advice is about: the failure, else the peak."""
        if self.failed_event is not None:
            return self.failed_event
        return self.device.requested.peak_event

    @cached_property
    def advice_rows(self) -> NDArray[np.int64]:
        """The allocations that are alive then."""
        return self.device.allocations.alive_after(self.advice_event)

    @cached_property
    def program_rows(self) -> NDArray[np.int64]:
        """Those of them that the program keeps by a name of its own."""
        return self.advice_rows[self.view.names.of_program[self.advice_rows]]

    @cached_property
    def computed_rows(self) -> NDArray[np.int64]:
        """Those of them that modules computed."""
        view, rows = self.view, self.advice_rows
        is_computed = np.isin(view.categories.category[rows], COMPUTED)
        return np.asarray(rows[is_computed & view.modules.marked[rows]])

    @cached_property
    def rows_of_ended_steps(self) -> NDArray[np.int64]:
        """Those of them that were made in steps that have ended; none where a pattern alone tells steps."""
        steps, rows = self.view.steps, self.advice_rows
        starts = steps.starts_until(self.advice_event)
        if steps.source == PATTERN or not len(starts):
            return rows[:0]
        is_of_step = self.view.step[rows] >= 0
        return np.asarray(rows[is_of_step & (self.device.allocations.born[rows] < starts[-1])])

    @cached_property
    def advice_shapes(self) -> dict[int, Shape]:
        """The shapes of what is alive then, by row, where names tell them."""
        return shapes_of(self.view.names, self.advice_rows.tolist())

    @property
    def wanted_bytes(self) -> int:
        """What is in use then, with the request that was the program's end."""
        asked_bytes = self.ending_request.size_bytes if self.is_ended_by_failure else 0
        return self.advice_heap.requested_bytes + asked_bytes

    @cached_property
    def pass_begins(self) -> NDArray[np.int64]:
        """The events at which the model is called; none where modules have no marks."""
        starts = pass_starts(self.view.modules, np.flatnonzero(self.view.modules.marked))
        return self.device.allocations.born[starts]

    @property
    def last_backward_end(self) -> int:
        """The event at which the last backward pass before then was over; -1 where none was."""
        return int(self.view.phases.ends_before(self.advice_event).max(initial=-1))

    @property
    def advice_heap(self) -> Heap:
        """The heap at the failure, else at the peak."""
        return self.heap_at(self.advice_event)

    def bytes_of(self, rows: NDArray[np.int64] | Sequence[int]) -> int:
        """What some allocations asked for together."""
        return int(self.device.allocations.requested_bytes[rows].sum())

    def extent(self, rows: NDArray[np.int64]) -> Extent:
        """The blocks of some allocations at the moment that advice is about."""
        return Extent(self.advice_event, rows)

    def part_of_heap(self, size_bytes: int) -> str:
        """A size with its share of the heap then; without one where a request that failed makes it more
        than the heap has.
        """
        in_use_bytes = self.advice_heap.requested_bytes
        if size_bytes > in_use_bytes:
            return format_size(size_bytes)
        return f"{format_size(size_bytes)} ({100 * size_bytes / in_use_bytes:.0f}%)"

    @cached_property
    def fragmentation(self) -> Fragmentation:
        """The holes at the failure, else at the peak."""
        return fragmentation_at(self.view, self.advice_event)

    @cached_property
    def last_fragmentation(self) -> Fragmentation:
        """The holes at the failure, else at the recording's end."""
        if self.failure is not None:
            return self.fragmentation
        return fragmentation_at(self.view, len(self.device.events) - 1)

    # What grows

    @cached_property
    def leaking_tensors(self) -> tuple[RecordedLeak, ...]:
        """What surely leaks by the failure, else by the last step, without stranded caches."""
        growing = self._leaks_to_fix(self.failed_event)
        return tuple(leak for leak in growing if leak.sure and leak.rows is not None)

    @property
    def all_growth(self) -> tuple[RecordedLeak, ...]:
        """All that grows until the end, and what only seems to."""
        return (*self._leaks_at(self.ending_event), *external_leak(self.view))

    @cached_property
    def least_leak_bytes(self) -> int:
        """From how many bytes per step on a leak matters."""
        return least_that_matters(self.view, self.outside)

    @cached_property
    def growth(self) -> tuple[RecordedLeak, ...]:
        """All that grows and can be mended; what is too small to matter is marked and last."""
        growing = (*self._leaks_to_fix(self.ending_event), *external_leak(self.view))
        return sized(growing, self.least_leak_bytes, self.peak.requested_bytes)

    @cached_property
    def prediction(self) -> TimeToFull | None:
        """When the memory will be full; None where it was, or nothing tells."""
        if self.is_ended_by_failure:
            return None
        return predicted(self.view, self.growth, self.outside)

    @cached_property
    def evaluation(self) -> Evaluation | None:
        """What evaluation with gradients enabled keeps; None where it keeps nothing."""
        return evaluation_of(self.view)

    # What was computed for one moment

    def _leaks_to_fix(self, event: int | None) -> tuple[RecordedLeak, ...]:
        return tuple(leak for leak in self._leaks_at(event) if leak.fix is not None)

    def _leaks_at(self, event: int | None) -> tuple[RecordedLeak, ...]:
        if event not in self._leaks:
            self._leaks[event] = leaks_at(self.view, event)
        return self._leaks[event]

    @cached_property
    def _heaps(self) -> dict[int, Heap]:
        return {}

    @cached_property
    def _leaks(self) -> dict[int | None, tuple[RecordedLeak, ...]]:
        return {}


def _beside(place: Place, offsets: range) -> Iterator[Place]:
    for offset in offsets:
        yield Place(place.file, place.line + offset, place.function)


def device_named(trace: Trace, device: int) -> DeviceTrace:
    """The device of that index.

    Raises:
        UsageError: the recording has no such device.
    """
    if device not in trace.devices:
        devices = ", ".join(map(str, trace.devices)) or "none"
        raise UsageError(f"the recording has no device {device} (it has: {devices})")
    return trace.devices[device]


Finder = Callable[[Scene], Iterator[Finding]]


def after_failure(find: Finder) -> Finder:
    """A finder that is asked only of recordings that end because memory ran out: those have an
    ending_request.
    """

    @wraps(find)
    def find_if_failed(scene: Scene) -> Iterator[Finding]:
        if scene.is_ended_by_failure:
            yield from find(scene)

    return find_if_failed
