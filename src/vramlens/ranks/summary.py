"""The summary of one rank: some kilobytes that are enough to compare it with any number of
others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution, attribute
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.finding import Place
from vramlens.analyses.leaks.growth import leaks_of
from vramlens.analyses.leaks.leak import Leak
from vramlens.ground.verdict import Verdict
from vramlens.ranks.hints import Hint, hints_of
from vramlens.trace import NO_STACK, DeviceTrace, Trace

_MOST_LINES = 400
_MOST_STEPS = 4096


@dataclass(frozen=True, slots=True)
class LineUse:
    """What one line of the program (in one kind of call) did with memory on one rank.

    Attributes:
        place: the user line; None for what has none.
        hints: what its stacks went through.
        category, phase: what most of its bytes are for, and when they were asked for.
        peak_bytes: the most requested bytes of it that were alive at once, whenever that was.
        at_peak_bytes: of it, alive at the device's own peak.
        allocations: how many in all.
        total_bytes: of all of them, requested.
        per_step: allocations in the step that has most of them.
        sizes: how many different sizes they have.
        static: whether most of its bytes were there before the first step ended and stayed to the
            last.
    """

    place: Place | None
    hints: Hint
    category: str
    phase: str
    peak_bytes: int
    at_peak_bytes: int
    allocations: int
    total_bytes: int
    per_step: int
    sizes: int
    static: bool

    @property
    def mean_bytes(self) -> float:
        """Of one allocation."""
        return self.total_bytes / max(1, self.allocations)


@dataclass(frozen=True, slots=True)
class Stray:
    """Memory of a rank on a device that is not its own.

    Attributes:
        device: where.
        reserved_bytes: of segments there, the peak.
        process_bytes: all that this process has there, contexts included; None where no driver was
            asked.
        place: the line that asked for it; None where it is older than the recording.
        hints: what that line's stack went through.
    """

    device: int
    reserved_bytes: int
    process_bytes: int | None
    place: Place | None
    hints: Hint


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that grows with every step: a leak's verdict, line, bytes a step and so far, steps,
    and what to do.
    """

    verdict: Verdict
    place: Place | None
    bytes_per_step: int
    bytes: int
    steps: int
    fix: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """The request that failed on a rank: when (microseconds since the epoch), in which step, for
    how much, where.
    """

    time_us: int
    step: int | None
    requested_bytes: int
    place: Place | None
    died: bool


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank.

    Attributes:
        rank: its number in the job, or the device's where one recording's devices are compared.
        source: the recording.
        device: the device that it works on.
        host, pid, world_size: from the recording; None where it does not say.
        groups: the process groups it was in: what each is called, and its ranks as spans (first,
        count, step). peak_requested_bytes, peak_allocated_bytes, peak_reserved_bytes: of its
        device, over the whole run.
        before_bytes: requested bytes that were there before the recording began.
        total_bytes: of the device; None where the recording does not say.
        step_peaks: the highest requested bytes in each step.
        lines: what each line held, the largest first; those beyond the first 400 are left out.
        strays: memory on other devices.
        leaks: what grew with every step.
        ledger: kinds and bytes of the device's memory as the driver counted it at the end; empty if
            it was not asked.
        failure: the last request that failed; None if none did.
        ended: why the recording was written (``Meta.trigger``: error, sigterm, exit, ...), and
            when, in microseconds since the epoch by its machine's clock; None where it does not
            say.
        ending: how the program ended, in one line (``Meta.ending``).
        missing: what the recording does not hold.
    """

    rank: int
    source: str
    device: int
    host: str | None
    pid: int | None
    world_size: int | None
    groups: tuple[tuple[str, tuple[tuple[int, int, int], ...]], ...]
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    before_bytes: int
    total_bytes: int | None
    step_peaks: tuple[int, ...]
    lines: tuple[LineUse, ...] = field(repr=False)
    strays: tuple[Stray, ...]
    leaks: tuple[Growth, ...]
    ledger: tuple[tuple[str, int], ...]
    failure: Failure | None
    ended: tuple[str, int] | None
    ending: str | None
    missing: tuple[str, ...]


def summarise(
    trace: Trace, rank: int, device: int | None = None, view: Attribution | None = None
) -> RankSummary:
    """The summary of a rank's recording.

    Args:
        trace: the recording.
        rank: its number.
        device: the device; by default the one with the highest requested peak.
        view: that device's attribution, where it is at hand.
    """
    index = trace.main_device if device is None else device
    meta, own = trace.meta, (None if index is None else trace.devices.get(index))
    if own is None:
        view = None
    elif view is None or view.device is not own:
        view = attribute(trace, own)
    return RankSummary(
        rank=rank,
        source=trace.source,
        device=-1 if index is None else index,
        host=None if meta is None else meta.host,
        pid=None if meta is None else meta.pid,
        world_size=None if meta is None else meta.world_size,
        groups=()
        if meta is None
        else tuple((one.description, one.spans) for one in meta.groups if one.description),
        peak_requested_bytes=0 if own is None else own.requested.peak_bytes,
        peak_allocated_bytes=0 if own is None else own.allocated.peak_bytes,
        peak_reserved_bytes=0 if own is None else own.reserved.peak_bytes,
        before_bytes=0 if own is None else own.requested.base_bytes,
        total_bytes=None if index is None else trace.total_bytes.get(index),
        step_peaks=() if view is None else _step_peaks(view),
        lines=() if view is None else _lines(view),
        strays=() if device is not None else tuple(_strays(trace, own)),
        leaks=() if view is None else tuple(_growth(leak) for leak in leaks_of(view)),
        ledger=_ledger(trace, index),
        failure=None if view is None else _failure(view),
        ended=None
        if meta is None or not meta.trigger or meta.written_us is None
        else (meta.trigger, meta.written_us),
        ending=None if meta is None else meta.ending,
        missing=trace.missing,
    )


def _growth(leak: Leak) -> Growth:
    return Growth(leak.verdict, leak.place, leak.bytes_per_step, leak.bytes, leak.steps, leak.fix)


def _step_peaks(view: Attribution) -> tuple[int, ...]:
    if not len(view.steps) or not len(view.device.events):
        return ()
    starts = view.steps.starts[:_MOST_STEPS]
    end = int(view.steps.ends[len(starts) - 1])
    return tuple(np.maximum.reduceat(view.device.requested_curve[:end], starts).tolist())


def _lines(view: Attribution) -> tuple[LineUse, ...]:
    """What each line did; a line whose stacks say different things is several."""
    allocations, stacks = view.device.allocations, view.trace.stacks
    if not len(allocations):
        return ()
    stack, frame = allocations.stack, view.phases.frame.copy()
    hint = np.zeros(len(allocations), np.int64)
    known = stack != NO_STACK
    hint[known] = hints_of(stacks)[stack[known]]
    # Frames are interned by more than what a person sees: one number a place.
    frames = np.unique(frame)
    places = [view.place(int(each)) for each in frames.tolist()]
    numbers = {place: i for i, place in enumerate(dict.fromkeys(places))}
    number = np.array([numbers[place] for place in places], np.int64)[
        np.searchsorted(frames, frame)
    ]
    _, first, key = np.unique(number << 20 | hint, return_index=True, return_inverse=True)
    key = key.reshape(-1)
    count = len(first)

    sizes = allocations.requested_bytes
    total = np.bincount(key, weights=sizes, minlength=count).astype(np.int64)
    births = np.bincount(key, minlength=count)
    at_peak = _bytes_at(view.device, key, count, view.device.requested.peak_event)
    last = int(view.steps.starts[-1]) if len(view.steps) else len(view.device.events) - 1
    early = view.step <= 0
    stays = early & (allocations.died > last)
    static = np.bincount(key, weights=np.where(stays, sizes, 0), minlength=count)
    peak = _own_peaks(view.device, key, count)
    per_step, kinds = _per_step(view, key, count), _different(key, sizes, count)
    category, phase = (
        _most(key, view.categories.category, sizes, count),
        _most(key, view.phases.phase, sizes, count),
    )

    largest = np.argsort(-peak, kind="stable")[:_MOST_LINES]
    return tuple(
        LineUse(
            place=view.place(int(frame[first[i]])),
            hints=Hint(int(hint[first[i]])),
            category=Category(int(category[i])).name.lower(),
            phase=Phase(int(phase[i])).name.lower(),
            peak_bytes=int(peak[i]),
            at_peak_bytes=int(at_peak[i]),
            allocations=int(births[i]),
            total_bytes=int(total[i]),
            per_step=int(per_step[i]),
            sizes=int(kinds[i]),
            static=bool(static[i] * 2 >= peak[i]),
        )
        for i in largest.tolist()
    )


def _bytes_at(
    device: DeviceTrace, key: NDArray[np.int64], count: int, event: int
) -> NDArray[np.int64]:
    rows = device.allocations.alive_after(event)
    return np.bincount(
        key[rows], weights=device.allocations.requested_bytes[rows], minlength=count
    ).astype(np.int64)


def _own_peaks(device: DeviceTrace, key: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The most bytes of each key that were alive at once."""
    allocations = device.allocations
    # A death comes before a birth at the same event: an event is one or the other of different
    #     allocations.
    when = np.concatenate((allocations.born * 2 + 1, allocations.died * 2))
    keys = np.concatenate((key, key))
    change = np.concatenate((allocations.requested_bytes, -allocations.requested_bytes))
    order = np.lexsort((when, keys))
    running = np.cumsum(
        change[order]
    )  # each key's changes sum to nothing, so the next one starts at zero again
    starts = np.searchsorted(keys[order], np.arange(count))
    return np.asarray(np.maximum.reduceat(running, starts), np.int64)


def _per_step(view: Attribution, key: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Births of each key in the step that has most of them."""
    born = view.step >= 0
    steps = max(1, len(view.steps))
    cell = key[born] * steps + view.step[born]
    if count * steps <= 8 * len(key):
        table = np.bincount(cell, minlength=count * steps).reshape(count, steps)
        return np.asarray(table.max(axis=1), np.int64)
    cells, births = np.unique(cell, return_counts=True)
    most = np.zeros(count, np.int64)
    np.maximum.at(most, cells // steps, births)
    return most


def _different(key: NDArray[np.int64], sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """How many different sizes each key has."""
    order = np.lexsort((sizes, key))
    keys, ordered = key[order], sizes[order]
    new = np.ones(len(keys), np.bool_)
    new[1:] = (keys[1:] != keys[:-1]) | (ordered[1:] != ordered[:-1])
    return np.bincount(keys[new], minlength=count)


def _most(
    key: NDArray[np.int64], kind: NDArray[np.integer], sizes: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """The kind that most bytes of each key have."""
    table = np.zeros((count, int(kind.max()) + 1), np.int64)
    np.add.at(table, (key, kind), sizes)
    return np.asarray(table.argmax(axis=1), np.int64)


def _strays(trace: Trace, own: DeviceTrace | None) -> list[Stray]:
    found = []
    for device in trace.devices.values():
        if own is None or device is own or device.device < 0 or not device.reserved.peak_bytes:
            continue
        allocations = device.allocations
        recorded = np.flatnonzero(allocations.born >= 0)
        place, hints = None, Hint.NONE
        if len(recorded):
            view = attribute(trace, device)
            largest = int(recorded[np.argmax(allocations.requested_bytes[recorded])])
            place = view.place(int(view.phases.frame[largest]))
            stack = int(allocations.stack[largest])
            hints = Hint(int(hints_of(trace.stacks)[stack])) if stack != NO_STACK else Hint.NONE
        mine = [
            size
            for kind, size in _ledger(trace, device.device)
            if kind.startswith(("pytorch_", "this_process", "nccl"))
        ]
        process = sum(mine) if mine else None
        found.append(Stray(device.device, device.reserved.peak_bytes, process, place, hints))
    return found


def _ledger(trace: Trace, device: int | None) -> tuple[tuple[str, int], ...]:
    if trace.ledgers is None or device is None:
        return ()
    ledger = trace.ledgers.end.get(device)
    return () if ledger is None else tuple((part.kind, part.bytes) for part in ledger.parts)


def _failure(view: Attribution) -> Failure | None:
    device = view.device
    if not device.out_of_memory:
        return None
    failed = device.out_of_memory[-1]
    step = int(view.steps.of(np.array([failed.event]))[0]) if len(view.steps) else None
    meta = view.trace.meta
    after = int((device.events.action[failed.event + 1 :] == 0).sum())
    died = after == 0 or (meta is not None and meta.trigger == "oom")
    time = int(device.events.time_us[failed.event]) if failed.event < len(device.events) else 0
    return Failure(time, step, failed.size_bytes, view.place_of_stack(failed.stack), died)
