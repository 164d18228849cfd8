"""A diff as GitHub Markdown: the same words as the text, for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramlens.foreign_text import markdown as escaped
from vramlens.foreign_text import markdown_block as fenced
from vramlens.report.diff.story import DiffStory, story_of

if TYPE_CHECKING:
    from vramlens.analyses.compare.diff import Diff


def diff_to_markdown(diff: Diff, top: int = 10) -> str:
    """The diff as Markdown, ``top`` lines of it."""
    return story_to_markdown(story_of(diff, top))


def story_to_markdown(story: DiffStory) -> str:
    """The words of a diff as Markdown."""
    blocks = [f"**{escaped(story.headline)}**"]
    if story.sentences:
        blocks.append(escaped(" ".join(story.sentences)))
    blocks.append(
        table(
            ("", "before", "after", "change", ""),
            [(row.name, row.before, row.after, row.change, row.note) for row in story.figures],
            "lrrrl",
        )
    )
    if story.lines:
        blocks.append(f"**{escaped(story.lines_title)}**")
        rows = [(row.change, row.words, row.detail, row.note) for row in story.lines]
        blocks.append(table(("change", "line", "", ""), rows, "rlll"))
    if story.rest:
        blocks.append(escaped(story.rest))
    if story.notes:
        blocks.append("\n".join(f"- {escaped(note)}" for note in story.notes))
    if story.others:
        blocks.append("**What else differs**")
        blocks.append("\n".join(f"- {escaped(other)}" for other in story.others))
    blocks.append(f"**Next**, {escaped(story.next_why)}:")
    blocks.append(fenced((story.next_command,)))
    return "\n\n".join(blocks) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """A table; ``align`` has l or r for each column, and columns that are empty in every row are
    left out.
    """
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    marks = {"l": ":--", "r": "--:"}
    lines = [
        "| " + " | ".join(header[i] or " " for i in kept) + " |",
        "|" + "|".join(marks[align[i]] for i in kept) + "|",
        *("| " + " | ".join(escaped(row[i]) for i in kept) + " |" for row in rows),
    ]
    return "\n".join(lines)
