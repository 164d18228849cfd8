"""Tables of operators: by name, by the shapes of their inputs, by the user's line; in any order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vramlens.analyses.finding import Place
from vramlens.analyses.profile.nesting import Nesting
from vramlens.analyses.profile.operators import (
    DeviceWork,
    OperatorGroup,
    OperatorRow,
    operator_rows,
)
from vramlens.analyses.profile.user_lines import Lines
from vramlens.errors import UsageError
from vramlens.trace.profile import ProfilerTrace

GROUPINGS = ("operator", "shape", "line")


@dataclass(frozen=True, eq=False)
class OperatorTables:
    """The operators of a trace, as ``prof.key_averages()`` sums them up.

    Attributes:
        trace, cpu, work, lines: of the trace.
        device: index into ``trace.memory_devices`` of the device whose memory counts.
    """

    trace: ProfilerTrace
    cpu: Nesting
    work: DeviceWork
    lines: Lines
    device: int

    def by(self, grouping: str, order: str = "cpu") -> tuple[OperatorRow, ...]:
        """One row an operator, or of each one a shape or a line.

        Args:
            grouping: of GROUPINGS.
            order: cpu, gpu, memory or calls: what the first rows have most of, by themselves.

        Raises:
            UsageError: the trace does not hold what it is to be grouped by.
        """
        apart = None
        if grouping == "shape":
            apart = self._shapes()
        elif grouping == "line":
            apart = self._lines()
        rows = operator_rows(self.trace, self.cpu, self.work, self.device, apart)
        return in_order(rows, order)

    def _shapes(self) -> OperatorGroup:
        if not self.trace.shapes:
            raise UsageError(
                f"{self.trace.source}: holds no shapes;"
                " torch.profiler.profile(record_shapes=True) records them"
            )
        return OperatorGroup(self.trace.spans.shapes, shapes=self.trace.shapes)

    def _lines(self) -> OperatorGroup:
        """The user's function that was running when each span began, or the one whose backward
        it is.
        """
        if not self.lines.known:
            raise UsageError(
                f"{self.trace.source}: holds no Python functions;"
                " torch.profiler.profile(with_stack=True) records them"
            )
        spans = self.trace.spans
        rows = self.cpu.rows
        user = self.lines.at(spans.thread[rows], spans.start_ns[rows])
        user = np.where(user >= 0, user, self.lines.behind(rows))
        places: dict[Place | None, int] = {}
        number_of_row = {
            row: places.setdefault(self.lines.place(row), len(places))
            for row in np.unique(user).tolist()
        }
        number = np.full(len(spans), -1, np.int64)
        number[rows] = [number_of_row[row] for row in user.tolist()]
        return OperatorGroup(number, places=list(places))


def in_order(rows: tuple[OperatorRow, ...], order: str) -> tuple[OperatorRow, ...]:
    """The rows that have most of something first."""

    def key(row: OperatorRow) -> tuple[int, int]:
        figures = {
            "cpu": (row.self_cpu_ns, row.total_cpu_ns),
            "gpu": (row.self_device_ns, row.total_device_ns),
            "memory": (row.self_allocated_bytes, row.self_memory_bytes),
            "calls": (row.calls, row.self_cpu_ns),
        }
        first, second = figures[order]
        return -first, -second

    return tuple(sorted(rows, key=key))
