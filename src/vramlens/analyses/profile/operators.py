"""Operators and kernels of a profiler trace by name, device work joined to what launched it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.profile.nesting import Nesting
from vramlens.trace.profile import DEVICE_KINDS, NONE, Kind, ProfilerTrace

_STEP = "ProfilerStep#"


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """All calls of one operator, region or runtime function; the words are those of
    ``prof.key_averages()``.

    Attributes:
        name: all profiler steps are one, ``ProfilerStep*``.
        kind: operator, region or runtime.
        calls: how many.
        self_cpu_ns: while it was the innermost on its thread.
        total_cpu_ns: from beginning to end, with all that it calls; of recursive calls each counts.
        self_device_ns: the device work that it launched itself; kernels that overlap each count.
        total_device_ns: the same with all that it calls.
        self_memory_bytes: asked for less given back while it was the innermost, on the device asked
            about.
        self_allocated_bytes: asked for alone.
    """

    name: str
    kind: str
    calls: int
    self_cpu_ns: int
    total_cpu_ns: int
    self_device_ns: int
    total_device_ns: int
    self_memory_bytes: int
    self_allocated_bytes: int


@dataclass(frozen=True, slots=True)
class KernelRow:
    """All device work of one name: kind is kernel, copy or fill; times of work that overlaps
    each count.
    """

    name: str
    kind: str
    calls: int
    total_ns: int
    longest_ns: int


@dataclass(frozen=True, eq=False)
class DeviceWork:
    """What ran on devices, one row a kernel, copy or fill.

    Attributes:
        rows: of ``Spans``.
        launch: the row of the call that launched each; NONE.
        operator: the row of the operator or region that launched each; NONE.
    """

    rows: NDArray[np.int64]
    launch: NDArray[np.int64]
    operator: NDArray[np.int64]


def join_device_work(trace: ProfilerTrace, cpu: Nesting) -> DeviceWork:
    """Joins device work to what launched it.

    By the launch that has its correlation, and the operator around that. "External id" decides only
    where there is
    no such launch: PyTorch 1.13 to 2.1 wrote the correlation under that name, which numbers other
        things.
    """
    spans = trace.spans
    rows = spans.of(DEVICE_KINDS)
    runtime = spans.of((Kind.RUNTIME,))
    launch = _find(runtime, spans.correlation[runtime], spans.correlation[rows])
    callers = cpu.above(np.isin(spans.kind, (Kind.OPERATOR, Kind.REGION)))
    operator = np.where(launch >= 0, callers[launch], NONE)
    operators = spans.of((Kind.OPERATOR, Kind.REGION))
    external = spans.external[rows]
    named = _find(
        operators,
        spans.external[operators],
        np.where(external == spans.correlation[rows], NONE, external),
    )
    return DeviceWork(rows, launch, np.where((operator < 0) & (launch < 0), named, operator))


def _find(
    rows: NDArray[np.int64], keys: NDArray[np.int64], keys_to_find: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each key wanted the first row that has it; NONE."""
    distinct_keys, first = np.unique(keys, return_index=True)
    if not len(distinct_keys):
        return np.full(len(keys_to_find), NONE, np.int64)
    place = np.minimum(np.searchsorted(distinct_keys, keys_to_find), len(distinct_keys) - 1)
    return np.where(
        (distinct_keys[place] == keys_to_find) & (keys_to_find >= 0), rows[first[place]], NONE
    )


_KIND_NAMES = {
    Kind.OPERATOR: "operator",
    Kind.REGION: "region",
    Kind.RUNTIME: "runtime",
    Kind.KERNEL: "kernel",
    Kind.COPY: "copy",
    Kind.FILL: "fill",
}


def operator_rows(
    trace: ProfilerTrace, cpu: Nesting, work: DeviceWork, device: int
) -> tuple[OperatorRow, ...]:
    """All operators, regions and runtime functions by name, the most self CPU time first.

    Args:
        device: index into ``trace.memory_devices`` of the device whose memory counts; NONE counts
            none.
    """
    spans = trace.spans
    rows = cpu.rows
    if not len(rows):
        return ()
    # Of a name the kind counts too: a region may be called as an operator is.
    group, names = _groups(trace, rows)
    own_device = np.zeros(len(spans), np.int64)
    is_inside = work.operator >= 0
    launched = work.rows[is_inside]
    np.add.at(
        own_device, work.operator[is_inside], spans.end_ns[launched] - spans.start_ns[launched]
    )
    net, allocated = _memory_of_rows(trace, cpu, device)

    def by_name(figures: NDArray[np.int64]) -> list[int]:
        sums = np.zeros(len(names), np.int64)
        np.add.at(sums, group, figures[rows])
        return [int(value) for value in sums]

    columns = zip(
        names,
        np.bincount(group, minlength=len(names)).tolist(),
        by_name(cpu.self_ns),
        by_name(spans.end_ns - spans.start_ns),
        by_name(own_device),
        by_name(cpu.totals(own_device)),
        by_name(net),
        by_name(allocated),
        strict=True,
    )
    table_rows = [
        OperatorRow(name, _KIND_NAMES[kind], *figures) for (name, kind), *figures in columns
    ]
    return tuple(sorted(table_rows, key=lambda row: (-row.self_cpu_ns, row.name, row.kind)))


def _groups(
    trace: ProfilerTrace, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[tuple[str, Kind]]]:
    """The number of each row's name and kind, and what these are."""
    spans = trace.spans
    alias: dict[str, int] = {}
    names = [f"{_STEP[:-1]}*" if name.startswith(_STEP) else name for name in trace.names]
    merged = np.array(
        [alias.setdefault(name, number) for number, name in enumerate(names)], np.int64
    )
    keys, group = np.unique(
        merged[spans.name[rows]] * len(Kind) + spans.kind[rows], return_inverse=True
    )
    return group.reshape(-1), [
        (names[key // len(Kind)], Kind(key % len(Kind))) for key in keys.tolist()
    ]


def _memory_of_rows(
    trace: ProfilerTrace, cpu: Nesting, device: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One element a row of ``Spans``: what it asked for less what it gave back, and what it
    asked for.
    """
    net, allocated = np.zeros(len(trace.spans), np.int64), np.zeros(len(trace.spans), np.int64)
    memory = trace.memory
    events = np.flatnonzero((memory.device == device) & ~memory.failed)
    rows = cpu.innermost(memory.thread[events], memory.time_ns[events])
    events, rows = events[rows >= 0], rows[rows >= 0]
    np.add.at(net, rows, memory.size[events])
    np.add.at(allocated, rows, np.maximum(memory.size[events], 0))
    return net, allocated


def kernel_rows(trace: ProfilerTrace, device: int) -> tuple[KernelRow, ...]:
    """The work of one device by name, the longest in all first."""
    spans = trace.spans
    rows = spans.of(DEVICE_KINDS)
    rows = rows[spans.device[rows] == device]
    if not len(rows):
        return ()
    group, names = _groups(trace, rows)
    lasted = spans.end_ns[rows] - spans.start_ns[rows]
    total, longest = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    np.add.at(total, group, lasted)
    np.maximum.at(longest, group, lasted)
    calls = np.bincount(group, minlength=len(names)).tolist()
    columns = zip(names, calls, total.tolist(), longest.tolist(), strict=True)
    table_rows = [
        KernelRow(name, _KIND_NAMES[kind], *figures) for (name, kind), *figures in columns
    ]
    return tuple(sorted(table_rows, key=lambda row: (-row.total_ns, row.name, row.kind)))
