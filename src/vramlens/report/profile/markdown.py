"""A profile as GitHub Markdown: the same content in the same order as the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens.foreign_text import markdown as escaped
from vramlens.foreign_text import markdown_block as fenced
from vramlens.foreign_text import markdown_code as code
from vramlens.report.explain.markdown import grid
from vramlens.report.explain.tables import DEFAULT_TOP
from vramlens.report.profile.story import Grid, ProfileClaim, profile_story
from vramlens.units import counted

if TYPE_CHECKING:
    from vramlens.analyses.profile.profile import Profile


def profile_to_markdown(profile: Profile, top: int | None = None) -> str:
    """The answer as Markdown; ``top`` rows of each table (10 by default)."""
    story = profile_story(profile)
    blocks = [
        f"**{escaped(story.headline)}**",
        *(escaped(text) for text in story.sentences),
        *(
            block
            for table in story.grids
            for block in _table(table, DEFAULT_TOP if top is None else top)
        ),
        *_claims(story.claims),
        *(escaped(f"Missing: {text}") for text in story.notes),
        f"**Next**, {escaped(story.next.why)}:",
        fenced(story.next.lines),
    ]
    return "\n\n".join(blocks) + "\n"


def _table(table: Grid, top: int) -> list[str]:
    blocks = [f"### {escaped(table.title)}"]
    if table.empty:
        return [*blocks, escaped(table.empty)]
    rows = [(*(escaped(cell) for cell in row[:-1]), code(row[-1])) for row in table.top(top)]
    blocks.append(grid((*table.header, table.noun), rows, len(table.header)))
    hidden = len(table.rows) - len(rows)
    if hidden:
        blocks.append(
            escaped(f"… and {counted(hidden, f'more {table.noun}', f'more {table.noun}s')}")
        )
    return [*blocks, *([escaped(f"({table.note})")] if table.note else [])]


def _claims(claims: tuple[ProfileClaim, ...]) -> list[str]:
    if not claims:
        return []
    lines = []
    for number, claim in enumerate(claims, 1):
        lines.append(f"{number}. {escaped(claim.title)}")
        lines += [f"   - {escaped(text)}" for text in claim.evidence]
        lines.append(f"   - **Do:** {escaped(claim.fix)}")
    return ["### What to do", "\n".join(lines)]
