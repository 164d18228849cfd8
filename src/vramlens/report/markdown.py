"""A document as GitHub Markdown: all of it, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

from vramlens.foreign_text import html_text
from vramlens.foreign_text import markdown as escaped
from vramlens.foreign_text import markdown_block as fenced
from vramlens.foreign_text import markdown_code as code
from vramlens.report.document import (
    NO_HELP,
    TO_DO,
    Claims,
    Command,
    Document,
    Figures,
    Form,
    Heading,
    Items,
    LastColumn,
    Sentences,
    Table,
)
from vramlens.report.holders import HeldMemory, HolderRow
from vramlens.report.wording import and_more, place_name
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.report.document import Claim, Part


def markdown_of(document: Document) -> str:
    """The document as Markdown."""
    blocks = [
        block for part in document.in_form(Form.MARKDOWN) for block in _WRITTEN_BY[type(part)](part)
    ]
    return "\n\n".join(blocks) + "\n"


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]], is_right: Sequence[bool]) -> str:
    """A table of escaped cells."""
    rule = ["---:" if right else "---" for right in is_right]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def _heading(heading: Heading) -> Iterator[str]:
    if heading.level > 2:
        yield f"### {escaped(heading.text)}"
    else:
        badge = f"{heading.badge} " if heading.badge else ""
        yield f"{badge}**{escaped(heading.text)}**"


def _sentences(part: Sentences) -> Iterator[str]:
    if part.is_paragraph and part.texts:
        yield escaped(" ".join(part.texts))
    elif not part.is_paragraph:
        yield from (f"{part.label}{escaped(text)}" for text in part.texts)


def _items(items: Items) -> Iterator[str]:
    if not items.texts:
        return
    opening = [items.title, ""] if items.title else []
    yield "\n".join([*opening, *(f"- {escaped(text)}" for text in items.texts)])


def _figures(figures: Figures) -> Iterator[str]:
    if figures.rows:
        rows = [(row.text, row.words, row.detail, row.note) for row in figures.rows]
        yield _filled_columns(figures.names, rows, (True, False, False, False))


def _table(table: Table) -> Iterator[str]:
    if table.last not in (LastColumn.CUT, LastColumn.CUT_INSIDE):
        names = [column.name for column in table.columns]
        yield _filled_columns(names, table.rows, [column.is_right for column in table.columns])
        yield from map(escaped, table.meanings())
        return
    yield f"### {escaped(table.title)}"
    if table.empty:
        yield escaped(table.empty)
        return
    rows = [(*(escaped(cell) for cell in row[:-1]), code(row[-1])) for row in table.top_rows()]
    names = [*(column.name for column in table.columns[:-1]), table.noun]
    yield _grid(names, rows, [True] * (len(names) - 1) + [False])
    hidden = len(table.rows) - len(rows)
    if hidden:
        yield escaped(and_more(hidden, table.noun, ""))
    if table.note:
        yield escaped(f"({table.note})")


def _filled_columns(
    names: Sequence[str], rows: Sequence[Sequence[str]], is_right: Sequence[bool]
) -> str:
    """A table without the columns that are empty in every row."""
    is_filled = [any(column) for column in zip(*rows, strict=True)]
    headings = [name or " " for name in compress(names, is_filled)]
    cells = [[escaped(cell) for cell in compress(row, is_filled)] for row in rows]
    return _grid(headings, cells, list(compress(is_right, is_filled)))


def _holders(holders: HeldMemory) -> Iterator[str]:
    yield f"### {escaped(holders.title)}, by {holders.by}"
    if holders.empty:
        yield escaped(holders.empty)
        return
    yield _holder_grid(holders)
    if holders.cut_note:
        yield escaped(holders.cut_note)
    if holders.inferred_note:
        yield escaped(holders.inferred_note)
    if holders.by == "stack":
        for number, row in enumerate(holders.top_rows(), 1):
            yield f"Stack {number}, {format_size(row.bytes)}:"
            yield fenced(tuple(map(place_name, row.frames)))


def _holder_grid(holders: HeldMemory) -> str:
    rows = holders.lines()
    columns = dict(holders.figures())
    figures = len(columns)
    columns["share"] = list(map(html_text, columns["share"]))
    columns[holders.by] = list(map(_holder_name, rows))
    if holders.note_header:
        columns[holders.note_header] = [escaped(row.note) for row in rows]
    is_right = [at < figures for at in range(len(columns))]
    return _grid(list(columns), list(zip(*columns.values(), strict=True)), is_right)


def _holder_name(row: HolderRow) -> str:
    name = code(place_name(row.place)) if row.place is not None else escaped(row.name)
    return f"{name} ({', '.join(map(code, row.tensors))})" if row.tensors else name


def _claims(part: Claims) -> Iterator[str]:
    if part.claims:
        yield f"### {TO_DO}"
        lines = [line for at, claim in enumerate(part.claims, 1) for line in _claim(at, claim)]
        yield "\n".join(lines)
    if part.refuted:
        yield f"### {NO_HELP}"
        yield from _items(Items(part.refuted))


def _claim(number: int, claim: Claim) -> list[str]:
    evidence = [f"   - {escaped(text)}" for text in claim.evidence]
    return [f"{number}. {escaped(claim.title)}", *evidence, f"   - **Do:** {escaped(claim.fix)}"]


def _command(command: Command) -> Iterator[str]:
    opening = "**Next**, " if command.is_next else ""
    yield f"{opening}{escaped(command.why)}{':' if command.lines else '.'}"
    if command.lines:
        yield fenced(command.lines)


_WRITTEN_BY: dict[type[Part], Callable[[Any], Iterator[str]]] = {
    Heading: _heading,
    Sentences: _sentences,
    Items: _items,
    Figures: _figures,
    Table: _table,
    HeldMemory: _holders,
    Claims: _claims,
    Command: _command,
}
