"""Operators and kernels of a profiler trace by name, device work joined to what launched it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Place
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
        shapes: of its inputs, where the table is by shape; "" where the trace does not say.
        place: the user's function that called it, by the line that it begins at, where the table
            is by line; None where the trace does not say.
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
    shapes: str = ""
    place: Place | None = None


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


@dataclass(frozen=True, slots=True)
class OperatorGroup:
    """What tells the rows of a table of operators apart beside name and kind.

    Attributes:
        number: one element a row of ``Spans``.
        shapes, places: by number, as far as the table is about them.
    """

    number: NDArray[np.int64]
    shapes: Sequence[str] = ()
    places: Sequence[Place | None] = ()


def operator_rows(
    trace: ProfilerTrace,
    cpu: Nesting,
    work: DeviceWork,
    device: int,
    apart: OperatorGroup | None = None,
) -> tuple[OperatorRow, ...]:
    """All operators, regions and runtime functions by name, the most self CPU time first.

    Args:
        device: index into ``trace.memory_devices`` of the device whose memory counts; NONE counts
            none.
        apart: what else tells rows apart; None for nothing.
    """
    spans = trace.spans
    if not len(cpu.rows):
        return ()
    counted = _counted(trace, cpu)
    group, names, details = _groups_apart(trace, cpu.rows, counted, apart)
    is_counted = counted[cpu.rows] == cpu.rows
    own_device = np.zeros(len(spans), np.int64)
    is_inside = work.operator >= 0
    launched = work.rows[is_inside]
    np.add.at(
        own_device, work.operator[is_inside], spans.end_ns[launched] - spans.start_ns[launched]
    )
    net, allocated = _memory_of_rows(trace, cpu, device)

    def sums(figures: NDArray[np.int64], which: NDArray[np.bool_] | slice) -> list[int]:
        summed = np.zeros(len(names), np.int64)
        np.add.at(summed, group[which], figures[cpu.rows][which])
        return [int(value) for value in summed]

    every = slice(None)
    calls = np.bincount(group[is_counted], minlength=len(names)).tolist()
    self_cpu, total_cpu = sums(cpu.self_ns, every), sums(spans.end_ns - spans.start_ns, is_counted)
    self_device, total_device = sums(own_device, every), sums(cpu.totals(own_device), is_counted)
    self_memory, self_allocated = sums(net, every), sums(allocated, every)
    table_rows = [
        OperatorRow(
            name=name,
            kind=_KIND_NAMES[kind],
            calls=calls[number],
            self_cpu_ns=self_cpu[number],
            total_cpu_ns=total_cpu[number],
            self_device_ns=self_device[number],
            total_device_ns=total_device[number],
            self_memory_bytes=self_memory[number],
            self_allocated_bytes=self_allocated[number],
            shapes=_detail(apart.shapes, details[number], "") if apart is not None else "",
            place=_detail(apart.places, details[number], None) if apart is not None else None,
        )
        for number, (name, kind) in enumerate(names)
    ]
    return tuple(sorted(table_rows, key=lambda row: (-row.self_cpu_ns, row.name, row.kind)))


def _counted(trace: ProfilerTrace, cpu: Nesting) -> NDArray[np.int64]:
    """One element a row of ``Spans``: itself, or the call around it that counts for both.

    An operator that does nothing but call itself (``aten::mean`` redispatched) is one call to
    ``prof.key_averages()`` (torch/autograd/profiler_util.py: _remove_dup_nodes).
    """
    spans = trace.spans
    rows = cpu.rows
    counted = np.arange(len(spans), dtype=np.int64)
    inner = rows[cpu.parent[rows] >= 0]
    parent = cpu.parent[inner]
    children = np.bincount(parent, minlength=len(spans))
    is_same = (spans.name[inner] == spans.name[parent]) & (children[parent] == 1)
    for row, caller in zip(inner[is_same].tolist(), parent[is_same].tolist(), strict=True):
        counted[row] = counted[caller]  # callers come first
    return counted


def _groups_apart(
    trace: ProfilerTrace,
    rows: NDArray[np.int64],
    counted: NDArray[np.int64],
    apart: OperatorGroup | None,
) -> tuple[NDArray[np.int64], list[tuple[str, Kind]], list[int]]:
    """The group of each row; by group its name and kind, and the number of what else tells it
    apart, one more than the index.
    """
    # Of a name the kind counts too: a region may be called as an operator is.
    group, names = _groups(trace, counted[rows])
    if apart is None:
        return group, names, [0] * len(names)
    numbers = apart.number[counted[rows]] + 1
    width = int(numbers.max()) + 1
    pairs, group = np.unique(group * width + numbers, return_inverse=True)
    return (
        group.reshape(-1),
        [names[pair // width] for pair in pairs.tolist()],
        [pair % width for pair in pairs.tolist()],
    )


_Detail = TypeVar("_Detail")


def _detail(details: Sequence[_Detail], number: int, otherwise: _Detail) -> _Detail:
    """What a number stands for, which is one more than the index; 0 is none."""
    return details[number - 1] if number and details else otherwise


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


def own_times(rows: Sequence[OperatorRow], *, on_gpu: bool) -> dict[str, int]:
    """The nanoseconds that each operator took by itself, on the GPU or of the CPU, by name."""
    return {
        row.name: row.self_device_ns if on_gpu else row.self_cpu_ns
        for row in rows
        if row.kind == "operator"
    }


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
