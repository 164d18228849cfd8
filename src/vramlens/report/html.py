"""A document as a page: one file, no scripts, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vramlens.foreign_text import html_text
from vramlens.report.document import (
    Command,
    Document,
    Figures,
    Form,
    Heading,
    Items,
    Sentences,
    Table,
)

if TYPE_CHECKING:
    from vramlens.report.document import Figure, Part

_STYLE = """
:root { color-scheme: light dark; --less: #1a7f37; --more: #b35900; --dim: #6b7280; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.35rem; line-height: 1.35; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
table { border-collapse: collapse; width: 100%; }
td, th { padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
th { text-align: left; font-weight: 500; color: var(--dim); } .n { text-align: right; white-space: nowrap; }
td.n { font-variant-numeric: tabular-nums; } .note, li { color: var(--dim); } td.note { font-size: .85em; }
.line { overflow-wrap: anywhere; font-family: ui-monospace, monospace; font-size: .9em; }
.bar { display: inline-block; height: .7em; border-radius: 2px; vertical-align: baseline; }
.less { background: var(--less); } .more { background: var(--more); } .track { width: 9rem; }
pre { padding: .6rem .8rem; border: 1px solid var(--line); border-radius: 6px; overflow-x: auto; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_VIEWPORT = "width=device-width, initial-scale=1"
_LONGEST_BAR = 8


def html_of(document: Document) -> str:
    """The document as one HTML page, named after its first heading."""
    shown = document.in_form(Form.HTML)
    title = next((part.text for part in shown if isinstance(part, Heading)), "")
    elements = [element for part in shown for element in _WRITTEN_BY[type(part)](part)]
    return page_of(title, _STYLE, elements)


def page_of(title: str, style: str, body: Sequence[str], *, viewport: str = _VIEWPORT) -> str:
    """A page of elements that are escaped already."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="{viewport}">'
        f"<title>{html_text(title)}</title><style>{style}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _heading(heading: Heading) -> Iterator[str]:
    element = "h1" if heading.level == 1 else "h2"
    yield f"<{element}>{html_text(heading.text)}</{element}>"


def _sentences(part: Sentences) -> Iterator[str]:
    if part.is_paragraph or not part.is_aside:
        yield from (f"<p>{html_text(text)}</p>" for text in part.texts)
    elif part.texts:
        yield f'<p class="note">{"<br>".join(map(html_text, part.texts))}</p>'


def _items(items: Items) -> Iterator[str]:
    if items.texts:
        yield f"<ul>{''.join(f'<li>{html_text(text)}</li>' for text in items.texts)}</ul>"


def _table(table: Table) -> Iterator[str]:
    names = [column.name for column in table.columns]
    header = "".join(
        f'<th class="n">{html_text(name)}</th>' if name else "<th></th>" for name in names
    )
    body = "".join(_row(row) for row in table.rows)
    yield f"<table><tr>{header}</tr>{body}</table>"


def _row(cells: Sequence[str]) -> str:
    """A row: a name, figures, and a note."""
    name, *figures, note = map(html_text, cells)
    numbers = "".join(f'<td class="n">{figure}</td>' for figure in figures)
    return f'<tr><td>{name}</td>{numbers}<td class="note">{note}</td></tr>'


def _figures(figures: Figures) -> Iterator[str]:
    if figures.rows:
        largest = max(abs(row.bytes) for row in figures.rows) or 1
        yield f"<table>{''.join(_figure(row, largest) for row in figures.rows)}</table>"


def _figure(row: Figure, largest: int) -> str:
    kind = "more" if row.bytes > 0 else "less"
    width = _LONGEST_BAR * abs(row.bytes) / largest
    note = html_text("; " + row.note if row.note else "")
    return (
        f'<tr><td class="n">{html_text(row.text)}</td>'
        f'<td class="track"><span class="bar {kind}" style="width:{width:.2f}rem"></span></td>'
        f'<td><span class="line">{html_text(row.words)}</span><br>'
        f'<span class="note">{html_text(row.detail)}{note}</span></td></tr>'
    )


def _command(command: Command) -> Iterator[str]:
    lines, title = html_text("\n".join(command.lines)), html_text(command.title)
    yield f"<h2>{title}</h2>" if command.is_next else f"<p>{title}:</p>"
    yield f"<pre>{lines}</pre>"


_WRITTEN_BY: dict[type[Part], Callable[[Any], Iterator[str]]] = {
    Heading: _heading,
    Sentences: _sentences,
    Items: _items,
    Figures: _figures,
    Table: _table,
    Command: _command,
}
