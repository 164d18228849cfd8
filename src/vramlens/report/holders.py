"""Held memory: who holds the bytes of one moment, as a part of a document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vramlens.report.document import Part
from vramlens.report.wording import Location, and_more, share
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.trace import Frame

MOST_FRAMES = 12
_INFERRED = "backward: requested by the backward pass of that line"


@dataclass(frozen=True, slots=True)
class HolderRow:
    """One holder.

    Attributes:
        name: what holds the bytes; ``place`` instead where it is a line of code.
        place: the line; it can be shortened in a way that a name cannot.
        bytes, allocations: how much and how many; None where the count is not known.
        inferred_bytes: the part of ``bytes`` that was attributed to this row by inference.
        note: the category, or how sure the row is; how many modules are alike.
        frames: of a stack, innermost first.
        tensors: the names of those that the bytes are, where they are few.
        depth: how deep the row is in a tree.
        label: the part of the name that a row of a tree adds to the one above it.
    """

    name: str
    place: Location | None
    bytes: int
    allocations: int | None = None
    inferred_bytes: int = 0
    note: str = ""
    frames: tuple[Frame, ...] = ()
    tensors: tuple[str, ...] = ()
    depth: int = 0
    label: str = ""


@dataclass(frozen=True, slots=True)
class HeldMemory(Part):
    """Memory of one moment by who holds it, largest first.

    Attributes:
        by: one of GROUPINGS.
        total_bytes: what shares are shares of.
        rows: all of them.
        rest: what belongs to no row (no line known, outside any module); None where everything
            does.
        note_header: what the rows' notes are.
        empty: why there are no rows, and how to get some; "" where there are.
        nested: whether the bytes of a row are among those of the row that it lies in.
        title: which moment they are of.
        top: how many rows are shown.
        frames: how many frames of a stack are shown.
        all_by: the option that shows more rows, without their number.
        header_from: the width of a screen from which the columns are named.
        has_meanings: what a column means is said on a screen.
    """

    by: str
    total_bytes: int
    rows: tuple[HolderRow, ...]
    rest: HolderRow | None = field(default=None, kw_only=True)
    note_header: str = field(default="", kw_only=True)
    empty: str = field(default="", kw_only=True)
    nested: bool = field(default=False, kw_only=True)
    title: str = field(default="", kw_only=True)
    top: int | None = field(default=None, kw_only=True)
    frames: int = field(default=MOST_FRAMES, kw_only=True)
    all_by: str = field(default="", kw_only=True)
    header_from: float = field(default=0, kw_only=True)
    has_meanings: bool = field(default=True, kw_only=True)

    def top_rows(self) -> tuple[HolderRow, ...]:
        """The rows that are shown."""
        if self.top is None or not self.nested:
            return self.rows[: self.top]
        # A module is no smaller than those inside it, and stands before them: it is never cut
        # before they are.
        largest_first = sorted(range(len(self.rows)), key=lambda at: -self.rows[at].bytes)
        return tuple(self.rows[at] for at in sorted(largest_first[: self.top]))

    def lines(self) -> list[HolderRow]:
        """The rows that are shown, and what belongs to none."""
        return [*self.top_rows(), *filter(None, [self.rest])]

    def figures(self) -> Iterator[tuple[str, list[str]]]:
        """Yields the columns of figures, by name; counts and inferred shares where any is known."""
        rows = self.lines()
        yield "size", [format_size(row.bytes) for row in rows]
        yield "share", [share(row.bytes, self.total_bytes) for row in rows]
        counts = ["" if row.allocations is None else f"{row.allocations:,}" for row in rows]
        if any(counts):
            yield "count", counts
        inferred = [
            share(row.inferred_bytes, row.bytes) if row.inferred_bytes else "" for row in rows
        ]
        if any(inferred):
            yield "backward", inferred

    @property
    def cut_note(self) -> str:
        """What is not shown, and what shows it; "" where everything is."""
        shown = self.top_rows()
        hidden = len(self.rows) - len(shown)
        if not hidden:
            return ""
        hidden_bytes = _outermost_bytes(self.rows) - _outermost_bytes(shown)
        is_inside = self.nested and not hidden_bytes
        detail = "all inside these" if is_inside else format_size(hidden_bytes)
        option = f"{self.all_by} {len(self.rows)}" if self.all_by else ""
        return and_more(hidden, "", option, detail=detail)

    @property
    def inferred_note(self) -> str:
        """What "backward" means; "" where no row shown has such bytes."""
        return _INFERRED if any(row.inferred_bytes for row in self.top_rows()) else ""


def _outermost_bytes(rows: tuple[HolderRow, ...]) -> int:
    """The bytes of rows, those inside of another row counted with it."""
    return sum(row.bytes for row in rows if not row.depth)
