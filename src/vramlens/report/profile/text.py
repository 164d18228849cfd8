"""A profile as text for a terminal: the answer first, then the tables, then what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from vramlens.report.layout import Layout, right
from vramlens.report.profile.story import Grid, ProfileStory, profile_story
from vramlens.report.screen import layout_of, room_of, show
from vramlens.units import counted

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.analyses.profile.profile import Profile

_TITLE = "bold"
_NAME = 20
"""Cells that a name should have; else a column of figures goes."""
_EXTRA = ("operators_memory", "timeline", "gaps")
"""Tables that are shown where rows were asked for, or there is room."""


@dataclass(frozen=True, slots=True)
class _Detail:
    """How much of each part is shown."""

    rows: int
    first_rows: int
    kept_rows: int = 99
    sentences: int = 99
    extras: bool = True
    evidence: bool = True
    blanks: bool = True
    claims: int = 99


def _details() -> Iterator[_Detail]:
    """From all to little; the answer, what to do and what is next always stay."""
    detail = _Detail(10, 10)
    yield detail
    changes: tuple[dict[str, int], ...] = (
        {"extras": 0},
        {"rows": 5, "first_rows": 6},
        {"rows": 4, "first_rows": 5, "evidence": 0},
        {"claims": 2},
        {"blanks": 0},
        {"claims": 1},
        {"rows": 3, "first_rows": 4},
        {"sentences": 2, "kept_rows": 2},
        {"first_rows": 3, "kept_rows": 1},
        {"rows": 2},
        {"kept_rows": 0},
        {"first_rows": 2},
        {"rows": 1},
        {"first_rows": 1},
        {"rows": 0},
    )
    for change in changes:
        detail = replace(detail, **change)  # type: ignore[arg-type]
        yield detail


def render_profile(
    profile: Profile, console: Console, top: int | None = None, *, whole: bool = False
) -> None:
    """Prints a profile.

    Args:
        top: how many rows of each table to show; by default as many as 24 lines, or a larger
            terminal, have room for.
        whole: show ten rows of every table, however many lines it takes.
    """
    layout = layout_of(console)
    story = profile_story(profile)
    if top is not None or whole:
        lines = _composed(story, layout, _Detail(top or 10, top or 10))
    else:
        room = room_of(console)
        for detail in _details():
            lines = _composed(story, layout, detail)
            if len(lines) <= room:
                break
    show(console, lines)


def _composed(story: ProfileStory, layout: Layout, detail: _Detail) -> list[Text]:
    opening = [Text(line, style=_TITLE) for line in layout.wrap(story.headline)]
    opening += [
        Text(line) for text in story.sentences[: detail.sentences] for line in layout.wrap(text)
    ]
    grids = [grid for grid in story.grids if detail.extras or grid.key not in _EXTRA]
    sections = [
        opening,
        *(_grid(grid, layout, detail) for grid in grids),
        _claims(story, layout, detail),
    ]
    if story.notes:
        sections.append(
            [Text(line) for text in story.notes for line in layout.wrap(text, first="Missing: ")]
        )
    next_lines = layout.wrap(f"Next, {story.next.why}:")
    sections.append(
        [
            *(Text(line, style=_TITLE) for line in next_lines),
            *(
                Text(f"  {line}") for line in story.next.lines
            ),  # never cut or wrapped: they are to be pasted
        ]
    )
    lines: list[Text] = []
    for section in filter(None, sections):
        if lines and detail.blanks:
            lines.append(Text(""))
        lines += section
    return lines


def _grid(grid: Grid, layout: Layout, detail: _Detail) -> list[Text]:
    """The columns' headings, the title over the last column, and the rows; columns without room
    are left out.
    """
    count = detail.first_rows if grid.key in ("operators", "peak") else detail.rows
    count = min(count, detail.kept_rows) if grid.key == "kept" else count
    rows = grid.top(count)
    if not rows and not grid.empty:
        return []
    hidden = len(grid.rows) - len(rows)
    title = grid.title
    if hidden:
        title += f" ({len(rows)} of {counted(len(grid.rows), grid.noun)})"
    if grid.empty:
        texts = [(line, _TITLE) for line in layout.wrap(title)]
        return [
            Text(*text)
            for text in (*texts, *((line, "") for line in layout.wrap(grid.empty, first="  ")))
        ]
    lines = []
    shown = [(*grid.header, title), *rows]
    columns = [right([row[n] for row in shown]) for n in range(len(grid.header))]
    while len(columns) > 1 and layout.width - _width(columns) < _NAME:
        columns.pop()
    width = max(layout.width - _width(columns), 12)
    for n, row in enumerate(shown):
        cells = [column[n] for column in columns]
        text = "  " + "  ".join([*cells, layout.from_right(row[-1], width)]).rstrip()
        lines.append(Text(text, style="" if n else _TITLE))
    if grid.note and detail.evidence:
        lines += [Text(line) for line in layout.wrap(f"({grid.note})", first="  ")]
    return lines


def _width(columns: list[list[str]]) -> int:
    return 2 + sum(cell_len(column[0]) + 2 for column in columns)


def _claims(story: ProfileStory, layout: Layout, detail: _Detail) -> list[Text]:
    if not story.claims:
        return []
    lines: list[str] = []
    for number, claim in enumerate(story.claims[: detail.claims], 1):
        mark = f"  {number}. "
        indent = " " * len(mark)
        lines += layout.wrap(claim.title, first=mark)
        if detail.evidence:
            lines += [line for text in claim.evidence for line in layout.wrap(text, first=indent)]
        lines += layout.wrap(claim.fix, first=f"{indent}Do: ")
    if len(story.claims) > detail.claims:
        lines.append(
            f"  {layout.ellipsis} and {len(story.claims) - detail.claims} more: --top 10 shows all"
        )
    return [Text("What to do", style=_TITLE), *(Text(line) for line in lines)]
