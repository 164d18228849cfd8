"""Leaks as text for a terminal: the answer first, then who keeps it, the fix, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from vramlens.report.layout import Layout, right
from vramlens.report.leaks_story import LeakClaim, LeakStory, leak_story
from vramlens.report.screen import layout_of, next_lines, show

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.analyses.leaks import LeakReport

_TITLE = "bold"


def render_leaks(report: LeakReport, console: Console, top: int | None = None) -> None:
    """Prints the answer of ``vramlens leaks``."""
    layout = layout_of(console)
    show(console, list(_lines(leak_story(report, top), layout)))


def _lines(story: LeakStory, layout: Layout) -> Iterator[Text]:
    if story.headline is not None:
        yield from _wrapped(layout, story.headline, style=_TITLE)
    for index, claim in enumerate(story.claims):
        if index or story.headline is not None:
            yield Text("")
        yield from _claim(claim, layout)
    if story.more:
        yield from _wrapped(layout, f"{story.more:,} more: --top {story.more + len(story.claims)} shows them.")
    yield Text("")
    if story.dismissed:
        yield Text("No leak, although it stays:", style=_TITLE)
        for size, (_, where, why) in zip(right([row[0] for row in story.dismissed]), story.dismissed, strict=True):
            first = f"  {size}  "
            yield from _wrapped(layout, f"{where}: {why}", first=first, rest=" " * cell_len(first))
    for note in story.notes:
        yield from _wrapped(layout, note, style="dim")
    for note in story.unknown:
        yield from _wrapped(layout, note)
    yield from next_lines(story.why, story.command, layout)


def _claim(claim: LeakClaim, layout: Layout) -> Iterator[Text]:
    yield from _wrapped(layout, claim.headline, style=_TITLE)
    yield from _wrapped(layout, claim.keeper)
    if claim.fix:
        yield from _wrapped(layout, claim.fix, first="Fix: ", rest="     ")
    for note in claim.notes:
        yield from _wrapped(layout, note, first="  ", rest="  ", style="dim")


def _wrapped(layout: Layout, text: str, *, first: str = "", rest: str | None = None, style: str = "") -> Iterator[Text]:
    for line in layout.wrap(text, first=first, rest=rest):
        yield Text(line, style=style)
