"""What stays after each step of a profiler's trace, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.report.document import Blank, Document, Heading, Last
from vramlens.report.profile.profile_tables import titled_table
from vramlens.report.wording import visible
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.profile.remains import StepRemains

_MOST_STEPS = 10


def remains_document(remains: Sequence[StepRemains], device: int) -> Document:
    """One row a step; of many steps, the last."""
    rows = [
        (
            str(row.step),
            format_size(row.bytes),
            f"{row.allocations:,}",
            f"{visible(row.largest)} ({format_size(row.largest_bytes)})",
        )
        for row in remains[-_MOST_STEPS:]
    ]
    left_out = len(remains) - len(rows)
    title = f"Stays after each profiler step on device {device}, until the trace ends"
    if left_out:
        title += f" (the last {_MOST_STEPS} of {len(remains)} steps)"
    table = titled_table("mostly", ("step", "size", "count"), rows, "step")
    return Document((Blank(), Heading(title, level=2), replace(table, last=Last.WRAPPED, cuts=())))
