"""A document as GitHub Markdown: all of it, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vramlens.foreign_text import markdown as escaped
from vramlens.foreign_text import markdown_block as fenced
from vramlens.foreign_text import markdown_code as code
from vramlens.report.document import (
    Claims,
    Command,
    Document,
    Figures,
    Form,
    Heading,
    Items,
    Last,
    Sentences,
    Table,
)
from vramlens.units import counted

if TYPE_CHECKING:
    from vramlens.report.document import Claim, Part


def markdown_of(document: Document) -> str:
    """The document as Markdown."""
    blocks = [
        block for part in document.in_form(Form.MARKDOWN) for block in _WRITTEN_BY[type(part)](part)
    ]
    return "\n\n".join(blocks) + "\n"


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], right: int) -> str:
    """A table of escaped cells whose first ``right`` columns are aligned to the right."""
    rule = ["---:" if at < right else "---" for at in range(len(header))]
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
    if table.last is not Last.CUT:
        names = [column.name for column in table.columns]
        yield _filled_columns(names, table.rows, [column.is_right for column in table.columns])
        return
    yield f"### {escaped(table.title)}"
    if table.empty:
        yield escaped(table.empty)
        return
    rows = [(*(escaped(cell) for cell in row[:-1]), code(row[-1])) for row in table.top_rows()]
    names = [*(column.name for column in table.columns[:-1]), table.noun]
    yield grid(names, rows, len(names) - 1)
    hidden = len(table.rows) - len(rows)
    if hidden:
        more = counted(hidden, f"more {table.noun}", f"more {table.noun}s")
        yield escaped(f"… and {more}")
    if table.note:
        yield escaped(f"({table.note})")


def _filled_columns(
    names: Sequence[str], rows: Sequence[Sequence[str]], is_right: Sequence[bool]
) -> str:
    """A table without the columns that are empty in every row."""
    filled = [at for at in range(len(names)) if any(row[at] for row in rows)]
    lines = [
        "| " + " | ".join(names[at] or " " for at in filled) + " |",
        "|" + "|".join("--:" if is_right[at] else ":--" for at in filled) + "|",
        *("| " + " | ".join(escaped(row[at]) for at in filled) + " |" for row in rows),
    ]
    return "\n".join(lines)


def _claims(claims: Claims) -> Iterator[str]:
    if claims.claims:
        yield f"### {claims.title}"
        lines = [line for at, claim in enumerate(claims.claims, 1) for line in _claim(at, claim)]
        yield "\n".join(lines)


def _claim(number: int, claim: Claim) -> list[str]:
    evidence = [f"   - {escaped(text)}" for text in claim.evidence]
    return [f"{number}. {escaped(claim.title)}", *evidence, f"   - **Do:** {escaped(claim.fix)}"]


def _command(command: Command) -> Iterator[str]:
    yield f"**Next**, {escaped(command.why)}:"
    yield fenced(command.lines)


_WRITTEN_BY: dict[type[Part], Callable[[Any], Iterator[str]]] = {
    Heading: _heading,
    Sentences: _sentences,
    Items: _items,
    Figures: _figures,
    Table: _table,
    Claims: _claims,
    Command: _command,
}
