"""A diff as text for a terminal: the answer first, then the figures, the lines, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from vramlens.report.diff.story import DiffStory, FigureRow, LineRow, story_of
from vramlens.report.layout import Layout, left, right
from vramlens.report.screen import layout_of, show

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.analyses.compare.diff import Diff

_TITLE = "bold"
_WIDE = 100


def render_diff(diff: Diff, console: Console, top: int = 10) -> None:
    """Prints a diff."""
    layout = layout_of(console)
    show(console, _lines(story_of(diff, top), layout))


def _lines(story: DiffStory, layout: Layout) -> Iterator[Text]:
    yield from (Text(line, style=_TITLE) for line in layout.wrap(story.headline))
    yield from (Text(line) for sentence in story.sentences for line in layout.wrap(sentence))
    yield Text("")
    yield from _figures(story.figures, layout)
    if story.lines:
        yield Text("")
        yield Text(story.lines_title, style=_TITLE)
        yield from _changes(story.lines, layout)
    if story.rest:
        yield from (Text(line) for line in layout.wrap(story.rest, first="  "))
    for note in story.notes:
        yield from (Text(line, style="dim") for line in layout.wrap(note, first="  "))
    if story.others:
        yield Text("")
        yield Text("What else differs", style=_TITLE)
        yield from (
            Text(line)
            for other in story.others
            for line in layout.wrap(other, first="  ", rest="    ")
        )
    yield Text("")
    yield from (Text(line, style=_TITLE) for line in layout.wrap(f"Next, {story.next_why}:"))
    yield Text(f"  {story.next_command}")


def _figures(rows: tuple[FigureRow, ...], layout: Layout) -> Iterator[Text]:
    names = left(["", *(row.name for row in rows)])
    columns = [
        right([header, *(getattr(row, header) for row in rows)])
        for header in ("before", "after", "change")
    ]
    for index, (name, *cells) in enumerate(zip(names, *columns, strict=True)):
        note = rows[index - 1].note if index else ""
        start = f"  {name}  {'  '.join(cells)}"
        if note:
            yield from (
                Text(line)
                for line in layout.wrap(note, first=f"{start}  ", rest=" " * (len(name) + 4))
            )
        else:
            yield Text(start.rstrip(), style="" if index else "dim")


def _changes(rows: tuple[LineRow, ...], layout: Layout) -> Iterator[Text]:
    for change, row in zip(right([row.change for row in rows]), rows, strict=True):
        indent = " " * (len(change) + 4)
        if layout.width >= _WIDE:
            words = "; ".join(filter(None, (row.words, row.detail, row.note)))
            yield from (
                Text(line) for line in layout.wrap(words, first=f"  {change}  ", rest=indent)
            )
            continue
        yield from (
            Text(line) for line in layout.wrap(row.words, first=f"  {change}  ", rest=indent)
        )
        detail = "; ".join(filter(None, (row.detail, row.note)))
        yield from (Text(line, style="dim") for line in layout.wrap(detail, first=indent))
