"""The story of a budget that was updated: what it allows now, what stayed open, what is next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens.report.document import Blank, Command, Document, Heading, Items, Sentences
from vramlens.report.wording import visible

if TYPE_CHECKING:
    from vramlens.analyses.budget.budget_update import Update


def update_document(
    update: Update, budget: str, *, is_new: bool, next_step: tuple[str, str]
) -> Document:
    """What became of a budget file; ``next_step`` is why, and the command."""
    done = "written" if is_new else "updated" if update.changes else "unchanged"
    limits = [
        f"{scope}: {now}" if before is None else f"{scope}: {before} before, {now} now"
        for scope, before, now in update.changes
    ]
    stays = "left out" if is_new else "as it was"
    limits += [f"{scope}: {stays}, because it is unknown: {why}" for scope, why in update.untold]
    why, command = next_step
    return Document(
        (
            Heading(visible(f"{budget}: {done}.")),
            Items(tuple(map(visible, limits)), hang=4),
            Sentences(tuple(map(visible, update.notes)), "note: "),
            Blank(),
            Command(why, (visible(command),), is_broken=True),
        )
    )
