"""Work of its own: what one rank alone does in every step, and the memory that it built for it, as
the draft model of a server or the text encoder of a pipeline are. Whoever gave it to that rank knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from vramlens.ground.verdict import Verdict
from vramlens.ranks.excess.causes import BESIDE_TRAINING, outlives_steps
from vramlens.ranks.excess.line_excess import LineExcess, lone_lines, more_at_peak
from vramlens.ranks.rank_difference import LEAST_BYTES, RankDifference
from vramlens.ranks.rank_summary import LineUse, RankSummary
from vramlens.units import format_size

OWN_WORK = "own_work"
"""Stands for a cause until it is told as a note."""
_FEWEST_STEPS = 3
_EVERY = 0.75
"""Of the steps in which it is done: a preview or an evaluation comes in some of them."""
_BUILT = 0.5
"""Of what is more, that was built once: what passes alone may be a preview, or a metric."""


def lines_of_own_work(
    by_cause: Mapping[str, Sequence[LineExcess]], rank: RankSummary
) -> list[LineExcess]:
    """The lines that hold more because a rank does work of its own; [] where nothing says that it
    does.

    Args:
        by_cause: its lines that hold more than is usual, by the cause of it.
        rank: it.
    """
    steps = len(rank.step_peaks)
    alone = lone_lines(by_cause.get("rank_only", ()))
    done = [excess for excess in alone if _is_done(excess.line, steps)]
    if not done:
        return []
    excesses = chain.from_iterable(by_cause.values())
    built = [excess for excess in excesses if excess.line.static and _is_more_often(excess)]
    own_bytes = more_at_peak([*built, *done])
    is_built = more_at_peak(built) >= _BUILT * own_bytes
    return [*built, *done] if is_built and own_bytes >= LEAST_BYTES else []


def _is_done(line: LineUse, steps: int) -> bool:
    """True if each step comes to a line, and nothing of it stays."""
    if line.static or outlives_steps(line) or line.hints & BESIDE_TRAINING:
        return False
    return steps >= _FEWEST_STEPS and line.allocations >= _EVERY * steps * max(1, line.per_step)


def _is_more_often(excess: LineExcess) -> bool:
    """True if a rank builds something that its peers do not build, or more of it."""
    return excess.usual is None or excess.line.allocations > excess.usual.allocations


def difference_of_own_work(rank: int, excesses: Sequence[LineExcess]) -> RankDifference:
    """What a rank does alone, to be told as a note."""
    ordered = sorted(excesses, key=lambda excess: excess.at_peak_bytes, reverse=True)
    own_bytes = more_at_peak(ordered)
    title = (
        f"rank {rank} alone does this work in every step, with {format_size(own_bytes)} at its peak"
        f" for it: {_places(ordered)}; it was given to this rank, so it is not told as a difference"
    )
    return RankDifference(
        ranks=(rank,),
        cause=OWN_WORK,
        verdict=Verdict.NOT_A_PROBLEM,
        bytes=own_bytes,
        place=ordered[0].line.place,
        title=title,
        evidence=(),
        fix="",
    )


def _places(excesses: Iterable[LineExcess]) -> str:
    places = dict.fromkeys(str(excess.line.place) for excess in excesses if excess.line.place)
    return " and ".join(list(places)[:2])


def without_own_work(
    differences: Iterable[RankDifference],
) -> tuple[list[RankDifference], list[str]]:
    """The differences but those of a rank's own work, and these as sentences."""
    told, notes = [], []
    for difference in differences:
        if difference.cause == OWN_WORK:
            notes.append(difference.title)
        else:
            told.append(difference)
    return told, notes
