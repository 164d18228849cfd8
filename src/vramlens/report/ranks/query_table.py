"""The rows that a query of a lake gives, for a person at a terminal.

Sizes, times and places are written as in every other report. A pipe and ``--json`` get exact values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from vramlens.report.document import (
    Blank,
    Column,
    Document,
    Heading,
    LastColumn,
    Part,
    Sentences,
    Table,
)
from vramlens.report.text import BOLD, print_document
from vramlens.report.wording import and_more, place_name, visible
from vramlens.trace.stacks import Frame
from vramlens.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.console import Console

MOST_ROWS = 40
"""What a terminal gets of an answer."""
_IS_SIZE = re.compile(r"(?<![a-z])bytes(?![a-z])")
_IS_TIME = re.compile(r"_time_us$")
_IS_FIGURE = re.compile(r"[-+]?[0-9.]+(?:e[-+]?[0-9]+)?(?: (?:bytes?|[KMG]iB|[mun]?s))?$")
_FILE, _LINE, _FUNCTION = "file", "line", "function"


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """What a query of a lake gave.

    Attributes:
        names: of the columns.
        rows: their values, as DuckDB gives them; of more than MOST_ROWS only the first need be
            here.
        meaning: what the query answers; empty where the user wrote it.
        more_rows: how many there are beside ``rows``.
    """

    names: Sequence[str]
    rows: Sequence[Sequence[Any]]
    meaning: str = ""
    more_rows: int = 0


def render_query(answer: QueryAnswer, console: Console) -> None:
    """Prints the rows: a table where there is room for it, else a block for each row."""
    print_document(Document(tuple(_parts(answer, console.width))), console)


def _parts(answer: QueryAnswer, width: int) -> Iterator[Part]:
    if answer.meaning:
        yield Heading(f"{answer.meaning[:1].upper()}{answer.meaning[1:]}:")
        yield Blank()
    if not answer.rows:
        yield Sentences(("No rows.",), "  " if answer.meaning else "")
        return
    rows = answer.rows[:MOST_ROWS]
    records = [_texts(dict(zip(answer.names, row, strict=True))) for row in rows]
    table = _table(records, has_plain_names=bool(answer.meaning))
    if _width(table) <= width:
        yield table
    else:
        yield from _blocks(table)
    unlisted = len(answer.rows) - len(rows) + answer.more_rows
    if unlisted:
        yield Sentences((and_more(unlisted, "row", "--json"),), is_aside=True)


def _texts(record: Mapping[str, Any]) -> dict[str, str]:
    """A row's cells as text, by column; file, line and function become one place, the last."""
    texts = {name: _text(name, value) for name, value in record.items()}
    if _FILE in record and _LINE in record:
        place = Frame(
            str(record[_FILE] or ""), int(record[_LINE] or 0), str(record.get(_FUNCTION) or "")
        )
        for name in (_FILE, _LINE, _FUNCTION):
            texts.pop(name, None)
        texts[_LINE] = place_name(place) if place.file else ""
    return texts


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(name, value)
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return visible(str(value))


def _number(name: str, value: int | float) -> str:
    if _IS_SIZE.search(name):
        return format_size(value)
    if _IS_TIME.search(name):
        return format_duration(1000 * value)
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _table(records: Sequence[Mapping[str, str]], *, has_plain_names: bool) -> Table:
    """The rows below the names of the columns that are not empty."""
    cells = {name: [record[name] for record in records] for name in records[0]}
    names = [name for name, texts in cells.items() if any(texts)] or list(cells)
    rows = tuple(zip(*(cells[name] for name in names), strict=True))
    columns = tuple(
        Column(_plain_name(name) if has_plain_names else name, is_right=_are_figures(cells[name]))
        for name in names
    )
    last = LastColumn.AS_A_NAME if names[-1] == _LINE else LastColumn.AS_IT_IS
    return Table(columns, rows, last, header_style=BOLD)


def _are_figures(texts: Sequence[str]) -> bool:
    return all(_IS_FIGURE.match(text or "0") for text in texts)


def _plain_name(name: str) -> str:
    """``most_bytes_at_peak`` as ``most at peak``: the cells have units."""
    return re.sub(r"_bytes|_us$", "", name).replace("_", " ")


def _width(table: Table) -> int:
    """The cells that the table takes on a screen; names without room stand above their figures."""
    beside = table.columns[:-1] if table.last is LastColumn.AS_A_NAME else table.columns
    widths = [
        max(cell_len(text) for text in (column.name, *(row[at] for row in table.rows)))
        for at, column in enumerate(beside)
    ]
    return sum(widths) + 2 * len(widths)


def _blocks(table: Table) -> Iterator[Part]:
    """Each row by itself: a column on each line, without those that are empty."""
    for number, row in enumerate(table.rows, 1):
        cells = tuple(
            (column.name, text) for column, text in zip(table.columns, row, strict=True) if text
        )
        columns = (Column(f"row {number}", is_right=False), Column(""))
        yield Blank()
        yield Table(columns, cells, LastColumn.WRAPPED, header_style=BOLD)
