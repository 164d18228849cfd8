"""The table of holders as lines of a terminal: figures to the right, names as wide as there is
room.
"""

from __future__ import annotations

import re

from rich.cells import cell_len

from vramlens.report.explain.detail import Detail
from vramlens.report.explain.holder_tables import HolderList, Row
from vramlens.report.layout import Layout, left, right
from vramlens.report.wording import place_name, share
from vramlens.units import format_size

_WIDTH_FOR_COUNTS = 70
_NARROWEST_NAME = 12
_NOTE = 16
_UNDERSTOOD = 3
"""Size, share and name need no header."""


def holder_lines(table: HolderList, layout: Layout, detail: Detail) -> list[str]:
    """The rows, sizes right-aligned; columns that say nothing, or find no room, are left out."""
    rows = [*table.rows, *filter(None, [table.rest])]
    is_headed = detail.header and _has_room_for_header(table, layout)
    figures = _figure_columns(rows, table.total_bytes, layout.width, is_headed)
    notes = _note_columns(table, rows, layout)
    taken = 2 + sum(cell_len(column[0]) + 2 for column in (*figures, *notes))
    names = left([table.by, *_names(rows, layout, max(layout.width - taken, _NARROWEST_NAME))])
    columns = [*figures, names, *notes]
    heading, *texts = ["  " + "  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    lines = [heading] if is_headed and len(columns) > _UNDERSTOOD else []
    for row, text in zip(rows, texts, strict=True):
        lines += [text, *_below(row, layout, detail)]
    if table.cut_note:
        place = len(lines) - bool(table.rest)  # what belongs to no row comes last
        lines[place:place] = layout.wrap(f"{layout.ellipsis} {table.cut_note}", first="  ")
    if table.inferred_note and detail.meanings:
        lines += layout.wrap(table.inferred_note, first="  ")
    return lines


def _has_room_for_header(table: HolderList, layout: Layout) -> bool:
    return bool(table.note_header) or layout.width >= _WIDTH_FOR_COUNTS


def _figure_columns(
    rows: list[Row], total_bytes: int, width: int, is_headed: bool
) -> list[list[str]]:
    """Sizes and shares; counts and inferred shares where any is known."""
    sizes = [format_size(row.bytes) for row in rows]
    shares = [share(row.bytes, total_bytes) for row in rows]
    counts = [] if width < _WIDTH_FOR_COUNTS else list(map(_count, rows))
    inferred = [share(row.inferred_bytes, row.bytes) if row.inferred_bytes else "" for row in rows]
    columns = (
        ("size", sizes, ""),
        ("share", shares, ""),
        ("count", counts, "x"),
        ("inferred", inferred, " inferred"),
    )
    return [
        right([header, *cells]) if is_headed else right(["", *_with_unit(cells, unit)])
        for header, cells, unit in columns
        if header in _ALWAYS_SHOWN or any(cells)
    ]


_ALWAYS_SHOWN = ("size", "share")


def _count(row: Row) -> str:
    return "" if row.allocations is None else f"{row.allocations:,}"


def _with_unit(cells: list[str], unit: str) -> list[str]:
    """The cells as they stand without a header."""
    return [cell and f"{cell}{unit}" for cell in cells]


def _note_columns(table: HolderList, rows: list[Row], layout: Layout) -> list[list[str]]:
    """The column of notes, in a list that is empty where the rows have none."""
    if not table.note_header:
        return []
    return [left([table.note_header, *(layout.from_right(row.note, _NOTE) for row in rows)])]


def _names(rows: list[Row], layout: Layout, width: int) -> list[str]:
    """The rows' names; where one of a folder has to lose it, all of that folder do."""
    names = [_name(row, layout, width) for row in rows]
    cut = {
        _folder(row)
        for row, name in zip(rows, names, strict=True)
        if row.place and name != row.name
    }
    return [
        layout.place(row.place, width, always_cut=True)
        if row.place and _folder(row) in cut
        else name
        for row, name in zip(rows, names, strict=True)
    ]


def _folder(row: Row) -> str:
    return re.sub(r"[^/\\]*$", "", row.place.file) if row.place else ""


def _name(row: Row, layout: Layout, width: int) -> str:
    if row.place is not None:
        return layout.place(row.place, width)
    return layout.from_right("  " * row.depth + row.label if row.label else row.name, width)


def _below(row: Row, layout: Layout, detail: Detail) -> list[str]:
    """What is said of a row below it: the names of its tensors, the callers of its stack."""
    if row.tensors and detail.frames > 2:
        kind = "tensor" if len(row.tensors) == 1 else "tensors"
        return [
            f"      {layout.from_right(f'{kind}: ' + ', '.join(row.tensors), layout.width - 6)}"
        ]
    return _frames(row, layout, detail)


def _frames(row: Row, layout: Layout, detail: Detail) -> list[str]:
    """The callers of a stack's innermost frame, below it."""
    callers = row.frames[1 : detail.frames]
    lines = [f"      {layout.place(frame, layout.width - 6)}" for frame in callers]
    hidden = len(row.frames) - 1 - len(callers)
    if hidden > 0 and detail.frames > 2:
        outer = (
            place_name(row.frames[-1])
            if hidden == 1
            else f"{layout.ellipsis} and {hidden} more frames"
        )
        lines.append(f"      {outer}")
    return lines
