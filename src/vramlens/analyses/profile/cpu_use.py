"""How busy the CPU was: in operators, in waits for the GPU, and in Python between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.profile.nesting import Nesting
from vramlens.analyses.profile.overview import busy_pieces
from vramlens.trace.profile import Kind, ProfilerTrace

WAITS = frozenset(
    f"{platform}{name}"
    for platform in ("cuda", "hip")
    for name in ("StreamSynchronize", "DeviceSynchronize", "EventSynchronize")
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
