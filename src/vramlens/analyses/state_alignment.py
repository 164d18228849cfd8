"""The lines that hold a program's state: one makes the parameters, one steps the optimizer,
whatever their names.
"""

from __future__ import annotations

from dataclasses import replace

from vramlens.analyses.compare.alignment import Alignment
from vramlens.analyses.compare.compared_run import Run
from vramlens.analyses.finding import Place

_STATE = ("parameters", "optimizer_state")
_NEARLY_ALL = 0.9


def with_state(before: Run, after: Run, alignment: Alignment) -> Alignment:
    """The alignment, and the one line of each run that holds nearly all of a state, where neither
    is aligned.

    A function that was renamed and rewritten has too little in common with what it was; but the
    optimizer that a run of the same model steps is the same optimizer.
    """
    pairs: dict[Place, Place] = {}
    aligned = set(alignment.after.values())
    for category in _STATE:
        old, new = _only_line(before, category), _only_line(after, category)
        if (
            old is not None
            and new is not None
            and old not in alignment.after
            and new not in aligned
        ):
            pairs[old] = new
    if not pairs:
        return alignment
    return replace(
        alignment, after={**alignment.after, **pairs}, moved=alignment.moved | pairs.keys()
    )


def _only_line(run: Run, category: str) -> Place | None:
    """The line that holds nearly all bytes of a category at the peak; None where several do."""
    lines_of_category = [
        line for line in run.lines.values() if line.category == category and line.bytes
    ]
    largest = max(lines_of_category, key=lambda line: line.bytes, default=None)
    if largest is None or largest.bytes < _NEARLY_ALL * sum(
        line.bytes for line in lines_of_category
    ):
        return None
    return largest.place
