"""Leaks as Markdown, for an issue or a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens.foreign_text import markdown as escaped
from vramlens.foreign_text import markdown_block as fenced
from vramlens.report.leaks.story import LeakStory, leak_story

if TYPE_CHECKING:
    from vramlens.analyses.leaks.leaks import LeakReport


def leaks_to_markdown(report: LeakReport, top: int | None = None) -> str:
    """The answer of ``vramlens leaks``; ``top`` leaks of it (5 by default)."""
    return "\n\n".join(_blocks(leak_story(report, top))) + "\n"


def _blocks(story: LeakStory) -> list[str]:
    blocks = [f"**{escaped(story.headline)}**"] if story.headline is not None else []
    for claim in story.claims:
        blocks += [f"**{escaped(claim.headline)}**", escaped(claim.keeper)]
        if claim.fix:
            blocks.append(f"Fix: {escaped(claim.fix)}")
        if claim.notes:
            blocks.append("\n".join(f"- {escaped(note)}" for note in claim.notes))
    if story.more:
        blocks.append(f"{story.more:,} more are left out.")
    if story.dismissed:
        rows = [
            f"- {size}: {escaped(where)}: {escaped(why)}" for size, where, why in story.dismissed
        ]
        blocks.append("\n".join(["No leak, although it stays:", "", *rows]))
    blocks += [escaped(note) for note in (*story.notes, *story.unknown)]
    blocks += [f"**Next**, {escaped(story.why)}:", fenced((story.command,))]
    return blocks
