"""A diff as a page: one file, no scripts, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramlens.foreign_text import html_text
from vramlens.report.diff.story import story_of

if TYPE_CHECKING:
    from vramlens.analyses.compare.diff import Diff

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


def diff_to_html(diff: Diff, top: int = 10) -> str:
    """The diff as one HTML page, ``top`` lines of it."""
    story = story_of(diff, top)
    figures = _table(
        ("", "before", "after", "change", ""),
        [
            (
                _cell(row.name),
                _number(row.before),
                _number(row.after),
                _number(row.change),
                _note(row.note),
            )
            for row in story.figures
        ],
    )
    widest = max((abs(line.change_bytes) for line in diff.by_line), default=1)
    lines = [
        (
            _number(row.change),
            _bar(line.change_bytes, widest),
            f'<td><span class="line">{html_text(row.words)}</span><br><span class="note">{html_text(row.detail)}'
            f"{html_text('; ' + row.note if row.note else '')}</span></td>",
        )
        for row, line in zip(story.lines, diff.by_line, strict=False)
    ]
    parts = [
        f"<h1>{html_text(story.headline)}</h1>",
        *(f"<p>{html_text(sentence)}</p>" for sentence in story.sentences),
        figures,
        *([f"<h2>{html_text(story.lines_title)}</h2>", _table((), lines)] if lines else []),
        *([f'<p class="note">{html_text(story.rest)}</p>'] if story.rest else []),
        _items(story.notes),
        *(["<h2>What else differs</h2>", _items(story.others)] if story.others else []),
        f"<h2>Next, {html_text(story.next_why)}</h2><pre>{html_text(story.next_command)}</pre>",
        f'<p class="note">Before: {html_text(diff.before.source)}<br>After: {html_text(diff.after.source)}</p>',
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html_text(story.headline)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(filter(None, parts))
        + "\n</body></html>\n"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(
        f'<th class="n">{html_text(name)}</th>' if name else "<th></th>" for name in header
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


def _cell(text: str) -> str:
    return f"<td>{html_text(text)}</td>"


def _number(text: str) -> str:
    return f'<td class="n">{html_text(text)}</td>'


def _note(text: str) -> str:
    return f'<td class="note">{html_text(text)}</td>'


def _bar(change: int, widest: int) -> str:
    kind = "more" if change > 0 else "less"
    return f'<td class="track"><span class="bar {kind}" style="width:{8 * abs(change) / widest:.2f}rem"></span></td>'


def _items(texts: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html_text(text)}</li>' for text in texts)}</ul>" if texts else ""
