"""CSV: one row an allocation, as RFC 4180 has it: commas, a header, quotes where they are
needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.export.allocation_table import Column, Numbers, table_of

_CHUNK = 1 << 14
_FORMULA = tuple("=+-@\t\r")


def csv_chunks(views: Sequence[Attribution]) -> Iterator[bytes]:
    """The bytes of a file, piece by piece; an empty cell is what the recording cannot tell."""
    for place, view in enumerate(views):
        table = table_of(view)
        if not place:
            yield (",".join(table) + "\r\n").encode()
        count = len(view.device.allocations)
        texts = {name: _texts(column) for name, column in table.items()}
        for first in range(0, count, _CHUNK):
            last = min(first + _CHUNK, count)
            columns = [
                _cells(name, column, texts[name], first, last) for name, column in table.items()
            ]
            rows = "\r\n".join(map(",".join, zip(*columns, strict=True)))
            yield (rows + "\r\n").encode("utf-8", "backslashreplace")


def _texts(column: Column) -> list[str]:
    """The different cells of a column of words; the last is that of -1: nothing."""
    return [] if isinstance(column, Numbers) else [*map(_quoted, column.texts), ""]


def _cells(name: str, column: Column, texts: list[str], first: int, last: int) -> list[str]:
    """The cells of some rows."""
    if not isinstance(column, Numbers):
        return [texts[code] for code in column.code[first:last].tolist()]
    values = column.values[first:last].tolist()
    cells = [f"0x{value:x}" for value in values] if name == "address" else list(map(str, values))
    if column.known is None:
        return cells
    is_known = column.known[first:last].tolist()
    return [cell if has_cell else "" for cell, has_cell in zip(cells, is_known, strict=True)]


def _quoted(text: str) -> str:
    """A cell: in quotes where it must be; text that a spreadsheet would calculate gets an
    apostrophe before it.
    """
    if text.startswith(_FORMULA):
        text = "'" + text
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text
