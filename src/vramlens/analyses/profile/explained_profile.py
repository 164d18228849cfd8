"""A profile explained: what a profiler trace says of time and memory, ready to be reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.finding import Finding
from vramlens.analyses.profile.memory_events import MemoryReport, memory_of
from vramlens.analyses.profile.nesting import Nesting, nest
from vramlens.analyses.profile.operator_tables import OperatorTables
from vramlens.analyses.profile.operators import (
    KernelRow,
    OperatorRow,
    join_device_work,
    kernel_rows,
)
from vramlens.analyses.profile.overview import (
    DeviceActivity,
    ProfilerStep,
    busy_pieces,
    device_numbers,
    device_use,
    steps_of_profile,
    wall_of,
)
from vramlens.analyses.profile.user_lines import Lines
from vramlens.errors import InputError, UsageError
from vramlens.ground.printed_answer import PrintedAnswer
from vramlens.trace.profile import CPU_KINDS, NONE, Kind, ProfilerTrace

WAITS = frozenset(
    f"{platform}{name}"
    for platform in ("cuda", "hip")
    for name in ("StreamSynchronize", "DeviceSynchronize", "EventSynchronize")
)


@dataclass(frozen=True, slots=True, repr=False)
class Profile(PrintedAnswer):
    """One answer about a profiler trace. Times are nanoseconds from ``wall_start_ns``'s own zero,
    the first event.

    Attributes:
        source: the file's name as given.
        spans, memory_events: how many were read.
        missing: what the file lacks.
        with_stack: whether it holds Python functions, so that lines can be named.
        gpus: the names of the GPUs that the trace describes, by number.
        wall_start_ns, wall_end_ns: the first and last moment at which something ran.
        steps: the profiler's.
        devices: how busy each device was; empty where nothing ran on one.
        device: the number of the device that ``kernels`` is about; None.
        operators: by name, the most self CPU time first; ``tables`` has them by shape and line.
        kernels: by name, the most time first.
        memories: of each device that the trace tells of, the fullest GPU first, the CPU's last.
        findings: the most useful first.
        cpu_use: how busy the CPU was.
    """

    source: str
    spans: int
    memory_events: int
    missing: tuple[str, ...]
    with_stack: bool
    gpus: tuple[str, ...]
    wall_start_ns: int
    wall_end_ns: int
    steps: tuple[ProfilerStep, ...]
    devices: tuple[DeviceActivity, ...]
    device: int | None
    operators: tuple[OperatorRow, ...]
    kernels: tuple[KernelRow, ...]
    memories: tuple[MemoryReport, ...]
    findings: tuple[Finding, ...]
    cpu_use: CpuUse
    tables: OperatorTables = field(compare=False)

    @property
    def wall_ns(self) -> int:
        return self.wall_end_ns - self.wall_start_ns

    @property
    def use(self) -> DeviceActivity | None:
        """How busy ``device`` was."""
        return next((use for use in self.devices if use.device == self.device), None)

    @property
    def memory(self) -> MemoryReport | None:
        """The memory that the answer is about: the first of ``memories``."""
        return self.memories[0] if self.memories else None


def explain_profile(trace: ProfilerTrace, device: int | None = None) -> Profile:
    """Explains a profiler trace.

    Args:
        device: the GPU whose kernels and memory come first; by default the busiest, and the
            fullest.

    Raises:
        UsageError: the trace has no such device.
        InputError: nothing in it took any time.
    """
    from vramlens.analyses.profile.profile_findings import profile_findings

    cpu = nest(trace, CPU_KINDS)
    lines = Lines(trace, cpu)
    work = join_device_work(trace, cpu)
    wall, steps = wall_of(trace), steps_of_profile(trace)
    if wall[1] <= wall[0]:
        raise InputError(f"{trace.source}: nothing in this profiler trace took any time")
    devices = tuple(
        device_use(trace, cpu, lines, work, number, wall) for number in device_numbers(trace)
    )
    indices = _memory_reports(trace, cpu, lines, steps)
    _check_device(trace, device, {use.device for use in devices}, indices)

    def first(index: int) -> tuple[bool, bool, int]:
        """What sorts the memory that the answer is about before the others."""
        memory = trace.memory_devices[index]
        return (
            memory.is_cpu,
            device is not None and memory.index != device,
            -indices[index].allocated_bytes,
        )

    order = sorted(indices, key=first)
    tables = OperatorTables(
        trace=trace, cpu=cpu, work=work, lines=lines, device=order[0] if order else NONE
    )
    busiest = max(devices, key=lambda use: (use.device == device, use.busy_ns), default=None)
    profile = Profile(
        source=trace.source,
        spans=len(trace.spans),
        memory_events=len(trace.memory),
        missing=trace.missing,
        with_stack=lines.known,
        gpus=_gpus(trace),
        wall_start_ns=wall[0],
        wall_end_ns=wall[1],
        steps=steps,
        devices=devices,
        device=None if busiest is None else busiest.device,
        operators=tables.by("operator"),
        kernels=() if busiest is None else kernel_rows(trace, busiest.device),
        memories=tuple(indices[index] for index in order),
        findings=(),
        cpu_use=cpu_use(trace, cpu, wall),
        tables=tables,
    )
    return profile_findings(profile)


def _memory_reports(
    trace: ProfilerTrace, cpu: Nesting, lines: Lines, steps: Sequence[ProfilerStep]
) -> dict[int, MemoryReport]:
    reports = (
        (index, memory_of(trace, cpu, lines, steps, index))
        for index in range(len(trace.memory_devices))
    )
    return {index: report for index, report in reports if report is not None}


def _check_device(
    trace: ProfilerTrace,
    device: int | None,
    gpus_at_work: set[int],
    reports: Mapping[int, MemoryReport],
) -> None:
    gpus = gpus_at_work | {
        trace.memory_devices[index].index for index in reports if not reports[index].is_cpu
    }
    if device is not None and device not in gpus:
        names = ", ".join(map(str, sorted(gpus))) or "none"
        raise UsageError(f"{trace.source}: has no device {device}; its GPUs: {names}")


def _gpus(trace: ProfilerTrace) -> tuple[str, ...]:
    devices = trace.facts.get("deviceProperties")
    if not isinstance(devices, list):
        return ()
    return tuple(
        str(device.get("name", ""))[:100] for device in devices[:64] if isinstance(device, dict)
    )


@dataclass(frozen=True, slots=True)
class CpuUse:
    """How busy the CPU was within the trace's wall time.

    Attributes:
        threads: how many ran operators or called the runtime.
        busy_ns: at least one of them was in an operator or a call of the runtime that does not
            wait.
        waiting_ns: none was, and at least one waited for the GPU.
        rest_ns: neither: Python, or what the trace does not show.
        mean_threads: on average so many threads were busy at once.
    """

    threads: int
    busy_ns: int
    waiting_ns: int
    rest_ns: int
    mean_threads: float


def cpu_use(trace: ProfilerTrace, cpu: Nesting, wall: tuple[int, int]) -> CpuUse:
    """How busy the CPU was between two moments."""
    spans = trace.spans
    is_wait = np.array([name in WAITS for name in trace.names], np.bool_)[spans.name]
    is_call = (spans.kind == Kind.OPERATOR) | (spans.kind == Kind.RUNTIME)
    starts, ends, owners = cpu.timed_pieces()
    owners_of_call = np.where(owners >= 0, cpu.above(is_call)[owners], -1)
    is_waiting = (owners >= 0) & is_wait[owners]
    is_busy = (owners_of_call >= 0) & ~is_waiting
    starts, ends = np.clip(starts, *wall), np.clip(ends, *wall)
    busy = _union(starts[is_busy], ends[is_busy])
    either = _union(starts[is_busy | is_waiting], ends[is_busy | is_waiting])
    wall_ns = wall[1] - wall[0]
    in_all = int((ends - starts)[is_busy].sum())
    return CpuUse(
        threads=len(np.unique(spans.thread[is_call])),
        busy_ns=busy,
        waiting_ns=either - busy,
        rest_ns=wall_ns - either,
        mean_threads=in_all / wall_ns,
    )


def _union(start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> int:
    """How long at least one of these lasted."""
    order = np.argsort(start_ns, kind="stable")
    starts, ends = busy_pieces(start_ns[order], end_ns[order])
    return int((ends - starts).sum())
