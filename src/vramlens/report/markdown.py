"""An explanation as GitHub Markdown: the same content in the same order as the text, nothing cut but by ``top``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramlens.report.story import Claim, Figure, Story, story_of
from vramlens.report.tables import DEFAULT_TOP, Row, Table
from vramlens.report.wording import place_name, share
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~])")
# A mention or a reference in a comment would notify people and link issues that have nothing to do with it.
_ENTITIES = {"&": "&amp;", "@": "&#64;"}


def to_markdown(explanation: Explanation, by: str = "line", top: int | None = None) -> str:
    """The answer as Markdown; memory grouped by one of ``tables.GROUPINGS``, ``top`` rows of it (10 by default)."""
    story = story_of(explanation, by)
    blocks = [
        f"**{escaped(story.headline)}**",
        *([escaped(" ".join(story.sentences))] if story.sentences else []),
        *_figures(story.figures),
        *_held(story, DEFAULT_TOP if top is None else top),
        *_ledger(story),
        *_claims(story.claims),
        *_listed("What would not help", story.refuted),
        *_listed("Also", story.notes),
        *_listed("Grows with every step", story.growth),
        *([escaped(story.steps)] if story.steps else []),
        *_listed("Not known", story.unknown),
        f"**Next**, {escaped(story.next.why)}:",
        _fenced(story.next.lines),
    ]
    return "\n\n".join(blocks) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is; what stands between single backticks becomes code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without its pair is just a character
        return _escaped(text)
    return "".join(code(part) if i % 2 else _escaped(part) for i, part in enumerate(parts))


def _escaped(text: str) -> str:
    text = "".join(_ENTITIES.get(char, char) for char in text)
    return re.sub(r"(&\\#64;)", "&#64;", _SPECIAL.sub(r"\\\1", text))


def code(text: str) -> str:
    """A code span that holds any text, also inside a table."""
    if not text:
        return ""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    padding = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{padding}{text}{padding}{fence}".replace("|", r"\|")


def _fenced(lines: tuple[str, ...]) -> str:
    longest = max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join((f"{fence}sh" if lines[0].startswith("vramlens ") else fence, *lines, fence))


def _grid(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], right: int) -> str:
    """A table whose first ``right`` columns are aligned to the right."""
    rule = tuple("---:" if i < right else "---" for i in range(len(header)))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def _figures(figures: tuple[Figure, ...]) -> list[str]:
    rows = [(format_size(figure.size_bytes), escaped(figure.words)) for figure in figures]
    return [_grid(("size", "what"), rows, 1)] if rows else []


def _held(story: Story, top: int) -> list[str]:
    if story.table is None:
        return []
    title = f"### {escaped(story.table_title)}, by {story.table.by}"
    table = story.table.cut(top)
    if table.empty:
        return [title, escaped(table.empty)]
    blocks = [title, _table(table)]
    if table.cut_note:
        blocks.append(escaped(f"… {table.cut_note}"))
    if table.by == "stack":
        blocks += [_stack(number, row) for number, row in enumerate(table.rows, 1)]
    return blocks


def _table(table: Table) -> str:
    rows = [*table.rows, *([table.rest] if table.rest else [])]
    likely = any(row.likely_bytes for row in rows)
    counts = any(row.allocations is not None for row in rows)
    header = ["size", "share"] + ["count"] * counts + ["likely"] * likely
    right = len(header)
    header += [table.by] + [table.note_header] * bool(table.note_header)
    body: list[tuple[str, ...]] = []
    for row in rows:
        cells = [
            format_size(row.bytes),
            share(row.bytes, table.total_bytes).replace("<", "&lt;").replace(">", "&gt;"),
        ]
        cells += [f"{row.allocations:,}" if row.allocations is not None else ""] * counts
        cells += [share(row.likely_bytes, row.bytes) if row.likely_bytes else ""] * likely
        cells.append(code(place_name(row.place)) if row.place is not None else escaped(row.name))
        cells += [escaped(row.note)] * bool(table.note_header)
        body.append(tuple(cells))
    return _grid(tuple(header), body, right)


def _stack(number: int, row: Row) -> str:
    frames = tuple(place_name(frame) for frame in row.frames)
    return f"Stack {number}, {format_size(row.bytes)}:\n\n{_fenced(frames)}"


def _ledger(story: Story) -> list[str]:
    if not story.ledger:
        return []
    total = format_size(sum(row.size_bytes for row in story.ledger))
    return [f"### Where the GPU's {total} are", *_figures(story.ledger)]


def _claims(claims: tuple[Claim, ...]) -> list[str]:
    return ["### What to do", "\n".join(_claim(n, claim) for n, claim in enumerate(claims, 1))] if claims else []


def _claim(number: int, claim: Claim) -> str:
    sure = "" if claim.verdict in ("proven", "not a problem") else f"{claim.verdict.capitalize()}: "
    lines = [f"{number}. {sure}{escaped(claim.title)}"]
    lines += [f"   - {escaped(text)}" for text in claim.evidence]
    return "\n".join([*lines, f"   - **Do:** {escaped(claim.fix)}"])


def _listed(title: str, items: tuple[str, ...]) -> list[str]:
    return [f"### {title}", "\n".join(f"- {escaped(item)}" for item in items)] if items else []
