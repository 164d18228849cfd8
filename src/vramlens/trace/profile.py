"""A profiler trace as columns: what ran when, on which thread or device, and every memory event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

NONE = -1
"""In a column: not known, or there is none."""


class Kind(IntEnum):
    """What a span is (libkineto/include/ActivityType.h names them so; older traces: "Operator",
    "Kernel" and so on).
    """

    OPERATOR = 0
    REGION = 1  # record_function, a profiler step, an optimizer's step
    RUNTIME = 2  # a call of the CUDA runtime or driver
    PYTHON = 3  # a Python function, a builtin or a module's call
    KERNEL = 4
    COPY = 5
    FILL = 6


CPU_KINDS = (Kind.OPERATOR, Kind.REGION, Kind.RUNTIME)
DEVICE_KINDS = (Kind.KERNEL, Kind.COPY, Kind.FILL)


@dataclass(frozen=True, eq=False)
class Spans:
    """One row a span, ordered by their beginnings (of two that begin together the longer first).

    Attributes:
        kind: a Kind.
        name: index into ``ProfilerTrace.names``.
        start_ns, end_ns: nanoseconds from the trace's beginning.
        thread: index into ``ProfilerTrace.threads``; of device work the device and its stream.
        device: the device's number, for device work; NONE for what ran on a CPU.
        correlation: the number that a launch and the work that it launched share; NONE.
        external: the number of the operator that this belongs to, or is; NONE.
        sequence: the autograd number that a forward operator and its backward share; NONE.
        backward: whether an operator is a backward one: it names the thread of its forward.
        shapes: index into ``ProfilerTrace.shapes``; NONE where the trace does not say
            (``record_shapes=True`` does).
    """

    kind: NDArray[np.uint8]
    name: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    thread: NDArray[np.int64]
    device: NDArray[np.int64]
    correlation: NDArray[np.int64]
    external: NDArray[np.int64]
    sequence: NDArray[np.int64]
    backward: NDArray[np.bool_]
    shapes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.kind)

    def of(self, kinds: Sequence[Kind]) -> NDArray[np.int64]:
        """The rows of these kinds."""
        return np.flatnonzero(np.isin(self.kind, [int(kind) for kind in kinds]))


@dataclass(frozen=True, eq=False)
class MemoryEvents:
    """One row a memory event, in order of time.

    Attributes:
        time_ns: nanoseconds from the trace's beginning.
        thread: index into ``ProfilerTrace.threads``.
        device: index into ``ProfilerTrace.memory_devices``.
        size: bytes; negative where they were given back.
        address: 0 where the trace does not say (PyTorch before 1.11).
        allocated, reserved: the allocator's own sums after the event; NONE where the trace does not
            say.
        failed: whether it is a request that failed.
    """

    time_ns: NDArray[np.int64]
    thread: NDArray[np.int64]
    device: NDArray[np.int64]
    size: NDArray[np.int64]
    address: NDArray[np.uint64]
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]
    failed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.time_ns)


# torch/headeronly/core/DeviceType.h
_TYPES = {
    0: "cpu",
    1: "cuda",
    6: "hip",
    9: "xla",
    12: "xpu",
    13: "mps",
    15: "hpu",
    19: "mtia",
    20: "privateuse1",
}


@dataclass(frozen=True, slots=True, order=True)
class MemoryDevice:
    """Whose memory: PyTorch's number of the type of device, and the device's own; -1 where there
    is but one.
    """

    type: int
    index: int

    def __str__(self) -> str:
        name = _TYPES.get(self.type, f"device type {self.type}")
        return name if self.type == 0 or self.index < 0 else f"{name}:{self.index}"

    @property
    def is_cpu(self) -> bool:
        return self.type == 0


@dataclass(frozen=True, eq=False)
class ProfilerTrace:
    """A profiler trace.

    Attributes:
        source: the file's name as given.
        facts: what the trace says of itself: "deviceProperties", "distributedInfo", "with_stack"
            and so on.
        names: of spans.
        shapes: of the inputs of operators, as the trace writes them: "[[64, 256], []]".
        threads: process and thread, or device and stream, as the trace names them.
        spans, memory: the columns.
        memory_devices: whose memory the events are about.
        began_us: the trace's beginning, in microseconds since the epoch; before PyTorch 2.4 by
            another clock.
        window_ns: when the profiler was started and stopped; None where the trace does not say.
        resolution_ns: how exact times are.
        missing: what the file lacks.
    """

    source: str
    facts: Mapping[str, Any]
    names: Sequence[str]
    shapes: Sequence[str]
    threads: Sequence[tuple[str, str]]
    spans: Spans
    memory: MemoryEvents
    memory_devices: Sequence[MemoryDevice]
    began_us: int
    window_ns: tuple[int, int] | None
    resolution_ns: int
    missing: tuple[str, ...] = ()
