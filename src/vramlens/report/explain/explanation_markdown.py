"""An explanation as GitHub Markdown: the same content in the same order as the text, nothing cut
but by ``top``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramlens.foreign_text import markdown as escaped
from vramlens.foreign_text import markdown_block as fenced
from vramlens.foreign_text import markdown_code as code
from vramlens.ground.verdict import Verdict
from vramlens.report.explain.holder_tables import DEFAULT_TOP, Row, Table
from vramlens.report.explain.story import Claim, Figure, Story, story_of
from vramlens.report.wording import place_name, share
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation


def to_markdown(explanation: Explanation, by: str = "line", top: int | None = None) -> str:
    """The answer as Markdown; memory grouped by one of ``tables.GROUPINGS``, ``top`` rows of it
    (10 by default).
    """
    story = story_of(explanation, by)
    blocks = [
        f"**{escaped(story.headline)}**",
        *([escaped(" ".join(story.sentences))] if story.sentences else []),
        *_figures(story.figures),
        *([escaped(" ".join(story.origin))] if story.origin else []),
        *_held(story, DEFAULT_TOP if top is None else top),
        *_ledger(story),
        *_claims(story.claims),
        *_listed("What will not help", story.refuted),
        *_listed("Also", story.notes),
        *_listed("Grows with every step", story.growth),
        *([escaped(story.steps)] if story.steps else []),
        *_listed("Not known", story.unknown),
        f"**Next**, {escaped(story.next.why)}{':' if story.next.lines else '.'}",
        *([fenced(story.next.lines)] if story.next.lines else []),
    ]
    return "\n\n".join(blocks) + "\n"


def grid(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], right: int) -> str:
    """A table whose first ``right`` columns are aligned to the right."""
    rule = tuple("---:" if i < right else "---" for i in range(len(header)))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def _figures(figures: tuple[Figure, ...]) -> list[str]:
    rows = [(format_size(figure.size_bytes), escaped(figure.words)) for figure in figures]
    return [grid(("size", "what"), rows, 1)] if rows else []


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
    if table.inferred_note:
        blocks.append(escaped(table.inferred_note))
    if table.by == "stack":
        blocks += [_stack(number, row) for number, row in enumerate(table.rows, 1)]
    return blocks


def _table(table: Table) -> str:
    rows = [*table.rows, *([table.rest] if table.rest else [])]
    inferred = any(row.inferred_bytes for row in rows)
    counts = any(row.allocations is not None for row in rows)
    header = ["size", "share"] + ["count"] * counts + ["inferred"] * inferred
    right = len(header)
    header += [table.by] + [table.note_header] * bool(table.note_header)
    body: list[tuple[str, ...]] = []
    for row in rows:
        cells = [
            format_size(row.bytes),
            share(row.bytes, table.total_bytes).replace("<", "&lt;").replace(">", "&gt;"),
        ]
        cells += [f"{row.allocations:,}" if row.allocations is not None else ""] * counts
        cells += [share(row.inferred_bytes, row.bytes) if row.inferred_bytes else ""] * inferred
        name = code(place_name(row.place)) if row.place is not None else escaped(row.name)
        cells.append(f"{name} ({', '.join(map(code, row.tensors))})" if row.tensors else name)
        cells += [escaped(row.note)] * bool(table.note_header)
        body.append(tuple(cells))
    return grid(tuple(header), body, right)


def _stack(number: int, row: Row) -> str:
    frames = tuple(place_name(frame) for frame in row.frames)
    return f"Stack {number}, {format_size(row.bytes)}:\n\n{fenced(frames)}"


def _ledger(story: Story) -> list[str]:
    if not story.ledger:
        return []
    total = format_size(sum(row.size_bytes for row in story.ledger))
    verb = f"were{story.ledger_when}" if story.ledger_when else "are"
    return [f"### Where the GPU's {total} {verb}", *_figures(story.ledger)]


def _claims(claims: tuple[Claim, ...]) -> list[str]:
    return (
        ["### What to do", "\n".join(_claim(n, claim) for n, claim in enumerate(claims, 1))]
        if claims
        else []
    )


def _claim(number: int, claim: Claim) -> str:
    sure = (
        ""
        if claim.verdict in (Verdict.PROVEN, Verdict.NOT_A_PROBLEM)
        else f"{claim.verdict.capitalize()}: "
    )
    lines = [f"{number}. {sure}{escaped(claim.title)}"]
    lines += [f"   - {escaped(text)}" for text in claim.evidence]
    return "\n".join([*lines, f"   - **Do:** {escaped(claim.fix)}"])


def _listed(title: str, items: tuple[str, ...]) -> list[str]:
    return [f"### {title}", "\n".join(f"- {escaped(item)}" for item in items)] if items else []
