"""Leaks as text for a terminal: the answer first, then who keeps it, the fix, and what it rests
on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from vramlens.report.layout import Layout, right
from vramlens.report.leaks.story import LeakClaim, LeakStory, leak_story
from vramlens.report.screen import layout_of, next_lines, room_of, show

if TYPE_CHECKING:
    from rich.console import Console

    from vramlens.analyses.leaks.leaks import LeakReport

_TITLE = "bold"


def render_leaks(report: LeakReport, console: Console, top: int | None = None) -> None:
    """Prints the answer of ``vramlens leaks``; on a terminal as much of it as one screen has room
    for.

    Args:
        top: how many leaks to show, in full.
    """
    layout = layout_of(console)
    story = leak_story(report, top)
    lines = list(_lines(story, layout))
    if console.is_terminal and top is None:
        for shorter in _shorter(story):
            if len(lines) <= room_of(console):
                break
            lines = list(_lines(shorter, layout, is_cut=True))
    show(console, lines)


def _shorter(story: LeakStory) -> Iterator[LeakStory]:
    """The same with less and less: what no leak is goes first, then what a verdict rests on,
    then the last leaks.
    """
    for rows in (2, 1):
        story = replace(story, dismissed=story.dismissed[:rows])
        yield story
    story = replace(story, notes=())
    yield story
    story = replace(story, dismissed=())
    yield story
    for notes in (1, 0):  # the last says why no more is certain
        claims = tuple(
            replace(claim, notes=claim.notes[len(claim.notes) - notes :]) for claim in story.claims
        )
        story = replace(story, claims=claims)
        yield story
    while len(story.claims) > 1:
        story = replace(story, claims=story.claims[:-1], more=story.more + 1)
        yield story


def _lines(story: LeakStory, layout: Layout, *, is_cut: bool = False) -> Iterator[Text]:
    if story.headline is not None:
        yield from _wrapped(layout, story.headline, style=_TITLE)
    for index, claim in enumerate(story.claims):
        if index or story.headline is not None:
            yield Text("")
        yield from _claim(claim, layout)
    if story.more:
        yield from _wrapped(
            layout, f"{story.more:,} more: --top {story.more + len(story.claims)} shows them."
        )
    yield Text("")
    if story.dismissed:
        yield Text("No leak, although it stays:", style=_TITLE)
        for size, (_, where, why) in zip(
            right([row[0] for row in story.dismissed]), story.dismissed, strict=True
        ):
            first = f"  {size}  "
            yield from _wrapped(layout, f"{where}: {why}", first=first, rest=" " * cell_len(first))
    if is_cut:
        yield Text(f"{layout.ellipsis} --markdown shows all")
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


def _wrapped(
    layout: Layout, text: str, *, first: str = "", rest: str | None = None, style: str = ""
) -> Iterator[Text]:
    for line in layout.wrap(text, first=first, rest=rest):
        yield Text(line, style=style)
