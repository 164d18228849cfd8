"""Tables of a profile that are asked for by name: operators in an order, and what stays after steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vramlens.report.document import Blank, Document, Heading, LastColumn, Part, Sentences
from vramlens.report.profile.profile_tables import operator_words, titled_table
from vramlens.report.profile.story import profile_document
from vramlens.report.wording import visible
from vramlens.units import format_duration, format_size

if TYPE_CHECKING:
    from vramlens.analyses.profile.explained_profile import Profile
    from vramlens.analyses.profile.operators import OperatorRow
    from vramlens.analyses.profile.remains import StepRemains

_DEFAULT_TOP = 20
_ORDER_WORDS = {
    "cpu": "self CPU time",
    "gpu": "their own time on the GPU",
    "memory": "memory asked for",
    "calls": "calls",
}
_MOST_STEPS = 10


@dataclass(frozen=True, slots=True)
class OperatorChoice:
    """What the table of operators is grouped by (operator, shape, line), and its order."""

    grouping: str = "operator"
    order: str = "cpu"


def operators_document(profile: Profile, choice: OperatorChoice, top: int | None) -> Document:
    """The profile's answer, and below it the table that was asked for, with all figures.

    Raises:
        UsageError: the trace does not hold what it is to be grouped by.
    """
    rows = profile.tables.by(choice.grouping, choice.order)
    has_gpu = profile.use is not None
    names = ["self CPU", "self GPU" if has_gpu else "CPU in all"]
    names += ["asked for", "net", "calls"] if profile.memory is not None else ["calls"]
    cells = [_cells(row, profile, has_gpu=has_gpu) for row in rows]
    device = f" on {profile.memory.device}" if profile.memory is not None else ""
    grouped = f", by {choice.grouping}" if choice.grouping != "operator" else ""
    title = f"Operators{grouped}, the most {_ORDER_WORDS[choice.order]} first{device}"
    table = titled_table(choice.grouping, names, cells, "row")
    table = replace(table, last=LastColumn.WRAPPED, top=top or _DEFAULT_TOP, cuts=())
    answer = profile_document(profile)
    heading, sentences = answer.parts[:2]
    parts: list[Part] = [
        heading,
        replace(sentences, cuts=()),
        Blank(),
        Heading(title, level=2),
        table,
    ]
    if choice.grouping == "line":
        parts.append(Sentences(("lines are those at which the function begins",), is_aside=True))
    return Document(tuple(parts))


def _cells(row: OperatorRow, profile: Profile, *, has_gpu: bool) -> tuple[str, ...]:
    memory = [format_size(row.self_allocated_bytes), format_size(row.self_memory_bytes)]
    return (
        format_duration(row.self_cpu_ns),
        format_duration(row.self_device_ns if has_gpu else row.total_cpu_ns),
        *(memory if profile.memory is not None else []),
        f"{row.calls:,}",
        operator_words(row),
    )


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
    return Document(
        (Blank(), Heading(title, level=2), replace(table, last=LastColumn.WRAPPED, cuts=()))
    )
