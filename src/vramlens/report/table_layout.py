"""A table as lines: columns aligned, and room found for the last one, whose words have any
length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from vramlens.report.document import Column, LastColumn, Table
from vramlens.report.layout import Layout, left, right
from vramlens.units import counted

_BETWEEN = "  "
_LEAST_LAST = 20
"""Cells that a last column should have; else a column of figures goes."""
_NARROWEST_LAST = 12
_NARROW = 64


def table_lines(table: Table, layout: Layout) -> Iterator[Text]:
    """Yields the lines of a table."""
    if table.narrow is not None and layout.width < table.least_width:
        table = table.narrow
    rows = table.top_rows()
    if table.empty:
        yield from (Text(line, style="bold") for line in layout.wrap(table.title))
        yield from (Text(line) for line in layout.wrap(table.empty, first="  "))
    elif rows or table.top is None:
        yield from _LAID_OUT_BY[table.last](table, rows, layout)
        if table.note:
            yield from (Text(line) for line in layout.wrap(f"({table.note})", first="  "))
        for meaning in table.meanings():
            yield from (Text(line) for line in layout.wrap(meaning, first="  "))


def _wrapped(table: Table, rows: Sequence[tuple[str, ...]], layout: Layout) -> Iterator[Text]:
    """Rows whose last words go on in further lines."""
    first_width = _first_width(table, rows, layout)
    columns = _figures(table, rows, range(len(table.columns)), layout)
    if first_width is not None:
        names = [layout.from_middle(row[0], first_width) for row in rows]
        columns[0] = _cells(table.columns[0], names, layout)
    hang = 2 + cell_len(columns[0][0]) + 2 if table.hang is None else table.hang
    last_words = ["", *(row[-1] for row in rows)]
    for index, (cells, words) in enumerate(
        zip(zip(*columns, strict=True), last_words, strict=True)
    ):
        start = table.margin + _BETWEEN.join(cells)
        if words:
            lines = layout.wrap(words, first=f"{start}{_BETWEEN}", rest=" " * hang)
            yield from (Text(line) for line in lines)
        else:
            yield Text(start.rstrip(), style="" if index else table.header_style)


def _first_width(table: Table, rows: Sequence[tuple[str, ...]], layout: Layout) -> int | None:
    """What the first column is cut to; None where it never is."""
    least_width = table.columns[0].least
    if least_width is None:
        return None
    figures = sum(
        max(map(cell_len, (column.name, *(row[at] for row in rows))))
        for at, column in enumerate(table.columns[1:-1], 1)
    )
    return max(least_width, layout.width - figures - table.last_room)


def _cut(table: Table, rows: Sequence[tuple[str, ...]], layout: Layout) -> Iterator[Text]:
    """Rows whose last words are cut; columns without room are left out."""
    title = table.title
    if len(rows) < len(table.rows):
        title += f" ({len(rows)} of {counted(len(table.rows), table.noun)})"
    columns = _figures(table, rows, range(len(table.columns)), layout)
    while len(columns) > 1 and layout.width - _width(columns) < _LEAST_LAST:
        columns.pop()
    room = max(layout.width - _width(columns), _NARROWEST_LAST)
    last_words = [title, *(row[-1] for row in rows)]
    is_cut_inside = table.last is LastColumn.CUT_INSIDE
    shortened = layout.from_middle if is_cut_inside else layout.from_right
    for index, words in enumerate(last_words):
        cells = [column[index] for column in columns]
        line = _BETWEEN.join([*cells, shortened(words, room)])
        yield Text(f"{table.margin}{line}".rstrip(), style="" if index else table.header_style)


def _named(table: Table, rows: Sequence[tuple[str, ...]], layout: Layout) -> Iterator[Text]:
    """Rows whose last words are names, each beside its figures or, without room, above them.

    Before that, what is the same in all rows leaves them for a line below the table.
    """
    alike = _columns_to_leave_out(table, rows, layout)
    chosen = [at for at in range(len(table.columns)) if at not in alike]
    columns = _figures(table, rows, chosen, layout)
    room = layout.width - _width(columns)
    names = _last_words(table, rows)
    is_beside = max(map(cell_len, names)) <= room
    for index, (name, *figures) in enumerate(zip(names, *columns, strict=True)):
        start = table.margin + _BETWEEN.join(figures)
        style = "" if index else table.header_style
        lines = [f"{start}{_BETWEEN}{name}"] if is_beside else [f"  {name}", f"  {start}"]
        yield from (Text(line.rstrip(), style=style) for line in lines)
    if alike:
        shared = ", ".join(f"{table.columns[at].name} {rows[0][at]}" for at in alike)
        lines = layout.wrap(f"in every row: {shared}", first="  ")
        yield from (Text(line, style="dim") for line in lines)


def _columns_to_leave_out(
    table: Table, rows: Sequence[tuple[str, ...]], layout: Layout
) -> list[int]:
    """The columns that are the same in all rows, where more last words find room without them."""
    every = range(len(table.columns))
    alike = [at for at in every[1:-1] if len({row[at] for row in rows}) == 1]
    fewer = [at for at in every if at not in alike]
    brings_room = len(rows) > 1 and _without_room(table, rows, fewer, layout) < _without_room(
        table, rows, every, layout
    )
    return alike if brings_room else []


def _without_room(
    table: Table, rows: Sequence[tuple[str, ...]], chosen: Sequence[int], layout: Layout
) -> int:
    """How many last words do not fit beside their figures."""
    room = layout.width - _width(_figures(table, rows, chosen, layout))
    return sum(cell_len(words) > room for words in _last_words(table, rows))


def _last_words(table: Table, rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [table.columns[-1].name, *(row[-1] for row in rows)]


def _figures(
    table: Table, rows: Sequence[tuple[str, ...]], chosen: Sequence[int], layout: Layout
) -> list[list[str]]:
    """The cells of the chosen columns but the last."""
    return [_cells(table.columns[at], [row[at] for row in rows], layout) for at in chosen[:-1]]


def _as_it_is(table: Table, rows: Sequence[tuple[str, ...]], layout: Layout) -> Iterator[Text]:
    columns = [
        _cells(column, [row[at] for row in rows], layout) for at, column in enumerate(table.columns)
    ]
    for index, cells in enumerate(zip(*columns, strict=True)):
        line = table.margin + _BETWEEN.join(cells)
        yield Text(line.rstrip(), style="" if index else table.header_style)
    if table.left_out:
        indent = " " * cell_len(table.margin + columns[0][0] + _BETWEEN)
        yield from (Text(text) for text in layout.wrap(table.left_out, first=indent))


def _cells(column: Column, cells: Sequence[str], layout: Layout) -> list[str]:
    """A column's name and its cells, each as wide as the widest."""
    is_narrow = layout.width < _NARROW and column.narrow_width is not None
    width = column.narrow_width if is_narrow and column.narrow_width else column.width
    if column.is_right:
        return right([column.name.rjust(width), *cells])
    return left([column.name.ljust(width), *cells])


def _width(columns: Sequence[Sequence[str]]) -> int:
    """The cells that columns take, with what lies between them and before the last one."""
    return 2 + sum(cell_len(column[0]) + len(_BETWEEN) for column in columns)


_LAID_OUT_BY = {
    LastColumn.WRAPPED: _wrapped,
    LastColumn.CUT: _cut,
    LastColumn.CUT_INSIDE: _cut,
    LastColumn.AS_A_NAME: _named,
    LastColumn.AS_IT_IS: _as_it_is,
}
