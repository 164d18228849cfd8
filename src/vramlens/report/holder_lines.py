"""The table of holders as lines of a terminal: figures to the right, names as wide as there is
room.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from vramlens.report.holders import HeldMemory, HolderRow
from vramlens.report.layout import Layout, left, right
from vramlens.report.wording import place_name
from vramlens.units import agreeing

_WIDTH_FOR_COUNTS = 70
_NARROWEST_NAME = 12
_NOTE = 16
_UNDERSTOOD = 3
"""Size, share and name need no header."""
_UNITS = {"count": "x", "backward": " backward"}
"""How figures stand without a header."""


def holder_lines(holders: HeldMemory, layout: Layout) -> Iterator[Text]:
    """Yields the title and the rows."""
    title = layout.wrap(f"{holders.title}, by {holders.by}")
    yield from (Text(line, style="bold") for line in title)
    lines = layout.wrap(holders.empty, first="  ") if holders.empty else _lines(holders, layout)
    yield from map(Text, lines)


def _lines(holders: HeldMemory, layout: Layout) -> list[str]:
    """The rows, sizes right-aligned; columns that say nothing, or find no room, are left out."""
    rows = holders.lines()
    is_headed = _is_headed(holders, layout)
    figures = list(_figure_columns(holders, layout.width, is_headed))
    notes = _note_columns(holders, rows, layout)
    taken = 2 + sum(cell_len(column[0]) + 2 for column in (*figures, *notes))
    names = left([holders.by, *_names(rows, layout, max(layout.width - taken, _NARROWEST_NAME))])
    columns = [*figures, names, *notes]
    heading, *texts = ["  " + "  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    lines = [heading] if is_headed and len(columns) > _UNDERSTOOD else []
    for row, text in zip(rows, texts, strict=True):
        lines += [text, *_below(row, layout, holders.frames)]
    if holders.cut_note:
        place = len(lines) - bool(holders.rest)  # what belongs to no row comes last
        lines[place:place] = layout.wrap(holders.cut_note, first="  ")
    if holders.inferred_note and holders.has_meanings:
        lines += layout.wrap(holders.inferred_note, first="  ")
    return lines


def _is_headed(holders: HeldMemory, layout: Layout) -> bool:
    has_room = bool(holders.note_header) or layout.width >= _WIDTH_FOR_COUNTS
    return has_room and layout.width >= holders.header_from


def _figure_columns(holders: HeldMemory, width: int, is_headed: bool) -> Iterator[list[str]]:
    """Yields sizes and shares, counts where there is room, and inferred shares."""
    for name, cells in holders.figures():
        if name == "count" and width < _WIDTH_FOR_COUNTS:
            continue
        if name == "backward" and not holders.has_meanings:
            continue
        header = name
        if name == "size":
            header, cells = _indented(holders, name, cells)
        unit = _UNITS.get(name, "")
        yield right(
            [header, *cells] if is_headed else ["", *(cell and cell + unit for cell in cells)]
        )


def _indented(holders: HeldMemory, header: str, sizes: list[str]) -> tuple[str, list[str]]:
    """The sizes, those that are a part of the row above to the right of the others, which add up."""
    are_parts = [bool(row.depth) and not holders.nested for row in holders.lines()]
    if not any(are_parts):
        return header, sizes
    cells = [
        size if is_part else f"{size}  " for size, is_part in zip(sizes, are_parts, strict=True)
    ]
    return f"{header}  ", cells


def _note_columns(
    holders: HeldMemory, rows: Sequence[HolderRow], layout: Layout
) -> list[list[str]]:
    """The column of notes, in a list that is empty where the rows have none."""
    if not holders.note_header:
        return []
    return [left([holders.note_header, *(layout.from_right(row.note, _NOTE) for row in rows)])]


def _names(rows: Sequence[HolderRow], layout: Layout, width: int) -> list[str]:
    """The rows' names; where one of a folder has to lose it, all of that folder do."""
    names = [_name(row, layout, width) for row in rows]
    cut_folders = {
        _folder(row)
        for row, name in zip(rows, names, strict=True)
        if row.place and name != row.name
    }
    for folder in cut_folders:
        rows_of_folder = [at for at, row in enumerate(rows) if row.place and _folder(row) == folder]
        places = [place for at in rows_of_folder if (place := rows[at].place)]
        for at, name in zip(rows_of_folder, layout.places(places, width), strict=True):
            names[at] = name
    return names


def _folder(row: HolderRow) -> str:
    return re.sub(r"[^/\\]*$", "", row.place.file) if row.place else ""


def _name(row: HolderRow, layout: Layout, width: int) -> str:
    if row.place is not None:
        return layout.place(row.place, width)
    return layout.from_right("  " * row.depth + row.label if row.label else row.name, width)


def _below(row: HolderRow, layout: Layout, most_frames: int) -> list[str]:
    """What is said of a row below it: the names of its tensors, the callers of its stack."""
    if row.tensors and most_frames > 2:
        kind = agreeing(len(row.tensors), "tensor", "tensors")
        return [
            f"      {layout.from_right(f'{kind}: ' + ', '.join(row.tensors), layout.width - 6)}"
        ]
    return _frames(row, layout, most_frames)


def _frames(row: HolderRow, layout: Layout, most_frames: int) -> list[str]:
    """The callers of a stack's innermost frame, below it."""
    callers = row.frames[1:most_frames]
    lines = [f"      {layout.place(frame, layout.width - 6)}" for frame in callers]
    hidden = len(row.frames) - 1 - len(callers)
    if hidden > 0 and most_frames > 2:
        outer = (
            place_name(row.frames[-1])
            if hidden == 1
            else f"{layout.ellipsis} and {hidden} more frames"
        )
        lines.append(f"      {outer}")
    return lines
