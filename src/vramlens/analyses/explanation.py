"""An explanation: all that vramlens has to say about one recording or one error text, ready to
be reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vramlens.analyses.failure.largest_use import LargestUse
from vramlens.analyses.failure.need import LimitAdvice, Need, SettingVerdict
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.memory.fragmentation import Fragmentation
from vramlens.analyses.memory.heap import Heap
from vramlens.ground.printed_answer import PrintedAnswer
from vramlens.ground.vocabulary import LedgerRow
from vramlens.trace import Meta, Trace


@dataclass(frozen=True, slots=True)
class Overwritten:
    """A ring of events that was full: what came before its first event is gone.

    Attributes:
        device: whose ring.
        first_event_us: when the first event that is left happened, in microseconds since the epoch.
        lost_us: how long had been recorded by then; None where unknown.
    """

    device: int
    first_event_us: int
    lost_us: int | None


@dataclass(frozen=True, slots=True)
class RecordingFacts:
    """What was read.

    Attributes:
        source: the file's name as given; "" of a prediction that was written nowhere.
        torch, device: version and name of the GPU, where the recording says so.
        events, allocations: how many, over all devices.
        complete, missing: whether something is missing, and what.
        settings: of the allocator, as recorded.
        devices: those that hold memory or events.
        meta: what a recording that vramlens made says about itself; empty for a bare snapshot.
        overwritten: the devices whose earliest events the recording says are overwritten.
        named_tensors, samples: how many the recording has.
        members: the parts of the ``.vram`` file.
    """

    source: str
    torch: str | None
    device: str | None
    events: int
    allocations: int
    complete: bool
    missing: tuple[str, ...]
    settings: Mapping[str, Any]
    devices: tuple[int, ...] = ()
    meta: Meta = field(default_factory=Meta)
    overwritten: tuple[Overwritten, ...] = ()
    named_tensors: int = 0
    samples: int = 0
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Peak:
    """The counters' maxima on one device, and the heap at the first event where requested bytes are
    highest.

    Attributes:
        device: the device.
        requested_bytes, allocated_bytes, active_bytes, reserved_bytes: each counter's own maximum.
        exact: the names of those that are proven exact.
        heap: who held the requested bytes at that maximum.
        shape: one sentence on how the run gets there; None where steps are unknown.
    """

    device: int
    requested_bytes: int
    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    exact: tuple[str, ...]
    heap: Heap
    shape: str | None


@dataclass(frozen=True, slots=True)
class Moment:
    """What the allocator counted at the moment asked for, exactly: its blocks' sizes are proven by
    replay.

    Attributes:
        allocated_bytes, active_bytes: of blocks in use, without and with those that a stream still
            uses.
        reserved_bytes: of segments.
    """

    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class OomVerdict:
    """The last request that failed on a device: what it hit (wall) and why (cause), as
    docs/json.md defines them.

    Attributes:
        event: its index; None from an error text.
        device: the device; None where a text does not say.
        count: failed requests in all.
        refused_workspaces: how many of those before the last were workspaces that cuDNN does
            without.
        requested_bytes: the block that failed, rounded; None from a text.
        tried_bytes: the segment asked of the driver.
        allocated_bytes, reserved_bytes, free_bytes: at that event; free is the device's, as the
            driver said.
        largest_free_bytes: the largest free block that the request could have used.
        limit_bytes: what the process may reserve, where there is such a limit.
        wall: process_limit, device, other_process, host or unknown.
        cause: fragmentation, leak, spike or capacity; None where it cannot be told.
        short_by_bytes: how much more would have been enough; None where it cannot be told.
        place: the line whose request failed.
        library: from a text, the innermost line of a library's below ``place``; None where it shows
            none.
        library_source: its text; "" where the text does not print it.
        headline: the verdict in one sentence, the telling number first.
        survived: whether the program went on after it.
        unknowns: what cannot be known from the input.
        need: what the step that failed would have needed to finish; None from a text, and where it
            was not asked.
        settings: what each setting would have changed; none where it was not asked.
        limit: what to allow the process; None from a text, and where it was not asked.
        others: from a text, which other ranks it says ran out of memory, in one sentence; "" where
            it names none.
        largest_use: the tensor or line that is at least half of the memory in use; None where there
            is none, and from a text.
    """

    event: int | None
    device: int | None
    count: int
    requested_bytes: int | None
    tried_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    free_bytes: int | None
    largest_free_bytes: int | None
    limit_bytes: int | None
    wall: str
    cause: str | None
    short_by_bytes: int | None
    place: Place | None
    headline: str
    survived: bool = False
    unknowns: tuple[str, ...] = ()
    others: str = ""
    need: Need | None = None
    settings: tuple[SettingVerdict, ...] = ()
    limit: LimitAdvice | None = None
    refused_workspaces: int = 0
    library: Place | None = None
    library_source: str = ""
    largest_use: LargestUse | None = None


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Steps: how many, what says so, and the requested bytes at each one's peak."""

    count: int
    source: str | None
    peak_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(PrintedAnswer):
    """One answer. From an error text only ``recording`` (without figures), ``oom``, ``ledger`` and
    ``findings`` speak.

    Attributes:
        recording: what was read.
        peak: None when there is no device.
        heap: the heap at the moment asked for (the peak by default); None when there is no device.
        at: the moment asked for: "peak", "oom", "end" or an event's number.
        oom: the out-of-memory verdict; None when nothing failed.
        steps, fragmentation, leaks, ledger: see their modules; fragmentation is None when there is
            no device.
        findings: the most useful first.
        moment: the counters at ``at``; None where they are not proven.
    """

    recording: RecordingFacts
    peak: Peak | None
    heap: Heap | None
    at: str
    oom: OomVerdict | None
    steps: StepFacts
    fragmentation: Fragmentation | None
    leaks: tuple[RecordedLeak, ...]
    ledger: tuple[LedgerRow, ...]
    findings: tuple[Finding, ...]
    moment: Moment | None = None

    @property
    def failure(self) -> OomVerdict | None:
        """The verdict on a failure that ended the program; None where it went on."""
        return None if self.oom is None or self.oom.survived else self.oom


def facts_of(trace: Trace) -> RecordingFacts:
    """What a recording is: its size, its versions, the run it comes from."""
    return RecordingFacts(
        source=trace.source,
        torch=trace.torch_version,
        device=trace.device_name,
        events=sum(len(recorded_device.events) for recorded_device in trace.devices.values()),
        allocations=sum(
            len(recorded_device.allocations) for recorded_device in trace.devices.values()
        ),
        complete=trace.complete,
        missing=trace.missing,
        settings=trace.settings,
        devices=tuple(trace.devices),
        meta=trace.meta,
        overwritten=_overwritten(trace),
        named_tensors=len(trace.names) if trace.names is not None else 0,
        samples=len(trace.samples) if trace.samples is not None else 0,
        members=trace.members,
    )


def _overwritten(trace: Trace) -> tuple[Overwritten, ...]:
    meta, rings = trace.meta, []
    for index, device in trace.devices.items():
        if meta.wrapped.get(index) and len(device.events):
            first = int(device.clock_us[0])
            lost = (
                None
                if meta.started_us is None or first < meta.started_us
                else first - meta.started_us
            )
            rings.append(Overwritten(index, first, lost))
    return tuple(rings)
