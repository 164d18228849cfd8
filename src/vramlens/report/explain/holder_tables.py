"""Tables: who holds the bytes of a heap, grouped as asked, cut where asked, what was cut said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vramlens.report.explain.module_tree import branches_of, main_parts
from vramlens.report.wording import Location, place_name, plain, short_place_name, visible
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.memory.heap import Heap
    from vramlens.trace import Frame

DEFAULT_TOP = 10
_INFERRED = "inferred: requested by the backward pass of that line"
_PLURALS = {"category": "categories"}


@dataclass(frozen=True, slots=True)
class Row:
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
class HolderList:
    """Holders, largest first.

    Attributes:
        by: one of GROUPINGS.
        total_bytes: what shares are shares of.
        rows: those shown.
        hidden: how many more there are, and their bytes.
        rest: what belongs to no row (no line known, outside any module); None where everything
            does.
        note_header: what the rows' notes are.
        empty: why there are no rows, and how to get some; "" where there are.
        nested: whether the bytes of a row are among those of the row that it lies in.
    """

    by: str
    total_bytes: int
    rows: tuple[Row, ...]
    hidden: int = 0
    hidden_bytes: int = 0
    rest: Row | None = None
    note_header: str = ""
    empty: str = ""
    nested: bool = False

    def cut(self, top: int) -> HolderList:
        """The table with no more than ``top`` rows."""
        if top >= len(self.rows):
            return self
        # A module is no smaller than those inside it, and stands before them: it is never cut
        # before they are.
        largest = (
            sorted(range(len(self.rows)), key=lambda i: -self.rows[i].bytes)
            if self.nested
            else None
        )
        shown = set(range(top) if largest is None else largest[:top])
        gone = [row for i, row in enumerate(self.rows) if i not in shown]
        return replace(
            self,
            rows=tuple(row for i, row in enumerate(self.rows) if i in shown),
            hidden=self.hidden + len(gone),
            hidden_bytes=self.hidden_bytes + sum(row.bytes for row in gone if not row.depth),
        )

    @property
    def cut_note(self) -> str:
        """What the table does not show; "" where it shows everything."""
        if not self.hidden:
            return ""
        more = counted(
            self.hidden, f"more {self.by}", f"more {_PLURALS.get(self.by, self.by + 's')}"
        )
        if self.nested and not self.hidden_bytes:
            return f"and {more} inside these"
        return f"and {more}, {format_size(self.hidden_bytes)}"

    @property
    def inferred_note(self) -> str:
        """What "inferred" means; "" where no row shown has such bytes."""
        return _INFERRED if any(row.inferred_bytes for row in self.rows) else ""


def table_of(heap: Heap, by: str) -> HolderList:
    """The holders of a heap's requested bytes by one of GROUPINGS, all of them."""
    return _TABLES[by](heap)


def _by_line(heap: Heap) -> HolderList:
    return HolderList(
        "line",
        heap.requested_bytes,
        _lines(heap),
        rest=_rest("(no line known)", heap.unattributed_bytes),
        note_header="mostly",
    )


def _by_code(heap: Heap) -> HolderList:
    rows = tuple(
        Row(place_name(row.place), row.place, row.bytes, row.allocations) for row in heap.by_code
    )
    return HolderList(
        "code",
        heap.requested_bytes,
        rows,
        rest=_rest("(no line known)", heap.unattributed_bytes),
    )


def _by_category(heap: Heap) -> HolderList:
    rows = tuple(
        Row(plain(name), None, category_bytes.bytes, note=category_bytes.verdict)
        for name, category_bytes in heap.by_category.items()
    )
    return HolderList("category", heap.requested_bytes, rows, note_header="verdict")


def _by_phase(heap: Heap) -> HolderList:
    rows = tuple(Row(plain(name), None, size) for name, size in heap.by_phase.items())
    return HolderList("phase", heap.requested_bytes, rows)


def _by_region(heap: Heap) -> HolderList:
    total, regions = heap.requested_bytes, heap.by_region
    if not regions:
        return HolderList("region", total, (), empty=_NO_REGIONS)
    rows = tuple(Row(visible(name), None, size) for name, size in regions.items())
    return HolderList(
        "region",
        total,
        rows,
        rest=_rest("(outside any region)", total - sum(regions.values())),
    )


_NO_REGIONS = (
    "No regions are recorded: wrap code in `with "
    "torch.profiler.record_function('name'):` and record again."
)
_NO_MODULES = (
    "No module names are recorded: none ran, or this is a bare PyTorch snapshot. "
    "A recording that vramlens run makes with PyTorch 2.10 or newer has them."
)


def _rest(name: str, size_bytes: int) -> Row | None:
    return Row(name, None, size_bytes) if size_bytes > 0 else None


def _by_module(heap: Heap) -> HolderList:
    total = heap.requested_bytes
    if not heap.by_module:
        return HolderList("module", total, (), empty=_NO_MODULES)
    branches = branches_of(heap.by_module)
    return HolderList(
        "module",
        total,
        tuple(
            Row(b.path, None, b.bytes, note=b.note, depth=b.depth, label=b.label) for b in branches
        ),
        rest=_rest("(outside any module)", total - sum(heap.by_module.values())),
        note_header="alike" if any(branch.note for branch in branches) else "",
        nested=True,
    )


_MOST = 0.6
"""Of all bytes: a line that holds more tells little where it calls a library; what lies below it
is shown, too.
"""
_BELOW = 4


def _below(heap: Heap) -> tuple[Row, ...]:
    """What lies below the largest line, where that holds most: modules where they are known, else
    libraries' lines.
    """
    if not heap.by_line or heap.by_line[0].bytes < _MOST * heap.requested_bytes:
        return ()
    line = heap.by_line[0]
    coded = [row for row in heap.by_code if row.caller == line.place != row.place]
    calls_library = sum(row.bytes for row in coded) >= line.bytes / 2
    if not calls_library:
        return ()
    if sum(heap.modules_below_line.values()) >= line.bytes / 2:
        return _modules_below(heap)
    names = [visible(short_place_name(row.place)) for row in coded[:_BELOW]]
    return tuple(
        Row(name, None, row.bytes, row.allocations, depth=1, label=_part_of_it(name))
        for name, row in zip(names, coded, strict=False)
    )


def _modules_below(heap: Heap) -> tuple[Row, ...]:
    return tuple(
        Row(
            part.path,
            None,
            part.bytes,
            note=part.note,
            depth=1,
            label=_part_of_it(_end_of_path(part.path)),
        )
        for part in main_parts(heap.modules_below_line, _BELOW)
    )


def _part_of_it(name: str) -> str:
    """How a part of the row above is named: its bytes are counted there already."""
    return f"of it: {name}"


_WIDEST_PATH = 20


def _end_of_path(path: str) -> str:
    """The last parts of a module's path: they tell modules apart."""
    parts = path.split(".")
    while len(parts) > 1 and len(".".join(parts)) > _WIDEST_PATH:
        del parts[0]
    end = ".".join(parts)
    return end if end == path else f"….{end}"


def _lines(heap: Heap) -> tuple[Row, ...]:
    rows = _user_lines(heap)
    return (*rows[:1], *_below(heap), *rows[1:])


def _user_lines(heap: Heap) -> tuple[Row, ...]:
    return tuple(
        Row(
            place_name(line.place),
            line.place,
            line.bytes,
            line.allocations,
            inferred_bytes=line.inferred_bytes,
            note=plain(line.category),
            tensors=tuple(visible(name) for name in line.names),
        )
        for line in heap.by_line
    )


def _by_stack(heap: Heap) -> HolderList:
    rows, without_stack = [], None
    for stack_bytes in heap.by_stack:
        if stack_bytes.frames:
            rows.append(
                Row(
                    place_name(stack_bytes.frames[0]),
                    stack_bytes.frames[0],
                    stack_bytes.bytes,
                    stack_bytes.allocations,
                    frames=stack_bytes.frames,
                )
            )
        else:
            without_stack = Row(
                "(no Python stack)", None, stack_bytes.bytes, stack_bytes.allocations
            )
    return HolderList("stack", heap.requested_bytes, tuple(rows), rest=without_stack)


_TABLES: dict[str, Callable[[Heap], HolderList]] = {
    "line": _by_line,
    "code": _by_code,
    "module": _by_module,
    "category": _by_category,
    "phase": _by_phase,
    "region": _by_region,
    "stack": _by_stack,
}
GROUPINGS = tuple(_TABLES)
