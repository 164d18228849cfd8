"""Work of its own: what one rank alone does, and the memory that it built for it, as the draft model of
a server, the text encoder of a pipeline or the network that scores samples are. Whoever gave it to that
rank knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from vramlens.ground.verdict import Verdict
from vramlens.ranks.excess.causes import BESIDE_TRAINING, LARGER_PART, SAME_SHARE, outlives_steps
from vramlens.ranks.excess.line_excess import LineExcess, bytes_of, lone_lines, more_at_peak
from vramlens.ranks.excess.reasons.divided_layers import divided_parameters, has_no_more_parameters
from vramlens.ranks.hints import Hint
from vramlens.ranks.peers.usual import Usual
from vramlens.ranks.rank_difference import LEAST_BYTES, RankDifference
from vramlens.ranks.rank_summary import LineUse, RankSummary
from vramlens.units import format_size

OWN_WORK = "own_work"
"""Stands for a cause until it is told as a note."""
_OF_ONE_RANK = ("rank_only", "rank0_gather")
"""Two temporaries a step look like what is gathered from two ranks."""
_TIMES_AS_MANY = 2
"""Tensors: larger batches make as many."""
_FEWEST_STEPS = 3
_EVERY = 0.75
"""Of the steps in which it is done: a preview or an evaluation comes in some of them."""
_BUILT, _BUILT_FOR_SOME = 0.1, 0.25
"""Of what is more, that was built once for work that is done in every step, or in some: what passes alone
may be a preview, or a metric.
"""


def lines_of_own_work(
    by_cause: Mapping[str, Sequence[LineExcess]], rank: RankSummary
) -> list[LineExcess]:
    """The lines that hold more because a rank does work of its own; [] where nothing says that it
    does.

    Args:
        by_cause: its lines that hold more than is usual, by the cause of it.
        rank: it.
    """
    alone = lone_lines(chain.from_iterable(by_cause.get(cause, ()) for cause in _OF_ONE_RANK))
    done = [excess for excess in alone if _passes(excess.line)]
    if not done or len(rank.step_peaks) < _FEWEST_STEPS:
        return []
    excesses = chain.from_iterable(by_cause.values())
    built = [excess for excess in excesses if excess.line.static and _is_more_often(excess)]
    own_bytes = more_at_peak([*built, *done])
    least_built = _BUILT if _is_in_every_step(done, rank) else _BUILT_FOR_SOME
    is_built = more_at_peak(built) >= least_built * own_bytes
    return [*built, *done] if is_built and own_bytes >= LEAST_BYTES else []


def _passes(line: LineUse) -> bool:
    """True if steps come to a line, and nothing of it stays."""
    is_of_others = line.hints & (BESIDE_TRAINING | Hint.GATHER)
    return not (line.static or outlives_steps(line) or is_of_others)


def _is_in_every_step(excesses: Iterable[LineExcess], rank: RankSummary) -> bool:
    """True if nearly every step comes to a line of what is done, not built."""
    lines = (excess.line for excess in excesses if not excess.line.static)
    return any(
        line.allocations >= _EVERY * len(rank.step_peaks) * max(1, line.per_step) for line in lines
    )


def _is_more_often(excess: LineExcess) -> bool:
    """True if a rank builds something that its peers do not build, or more of it."""
    return excess.usual is None or excess.line.allocations > excess.usual.allocations


def difference_of_own_work(rank: RankSummary, excesses: Sequence[LineExcess]) -> RankDifference:
    """What a rank does alone, to be told as a note."""
    ordered = sorted(excesses, key=lambda excess: excess.at_peak_bytes, reverse=True)
    own_bytes = more_at_peak(ordered)
    when = " in every step" if _is_in_every_step(excesses, rank) else ""
    title = (
        f"rank {rank.rank} alone does this work{when}, with {format_size(own_bytes)} at its peak"
        f" for it: {_places(ordered)}; it was given to this rank, so it is not told as a difference"
    )
    return _as_note(rank, ordered[0].line, own_bytes, title)


def differences_of_other_work(
    cause: str | None,
    by_cause: Mapping[str, Sequence[LineExcess]],
    rank: RankSummary,
    usual: Usual,
) -> list[RankDifference]:
    """What a rank holds more for another part of the work than its peers', to be told as a note; [] where
    larger tensors are no such part.

    Args:
        cause: the main one.
        by_cause: its lines that hold more, by the cause of it.
        rank: it.
        usual: what is usual among its peers.
    """
    if cause not in ("uneven_batch", LARGER_PART):
        return []
    larger = by_cause[cause]
    if _are_of_other_work(larger, rank):
        return [_difference_of_other_work(rank, larger)]
    divided = divided_parameters(larger, rank, usual)
    if divided is None or not has_no_more_parameters(rank, usual):
        return []
    return [_difference_of_other_part(rank, usual, larger, *divided)]


def _are_of_other_work(larger: Sequence[LineExcess], rank: RankSummary) -> bool:
    """True if most of what is larger is of lines that make far more or far fewer tensors than on its peers:
    what one owns of things of many kinds. Without training, other requests make other counts.
    """
    times = _TIMES_AS_MANY if rank.trains else 1 + SAME_SHARE
    other = [excess for excess in larger if _counts_otherwise(excess, times)]
    return not rank.died and 2 * bytes_of(other) > bytes_of(larger)


def _counts_otherwise(excess: LineExcess, times: float) -> bool:
    """True if a line makes so many times as many tensors as on its peers, or they as it."""
    if excess.usual is None or not excess.usual.allocations:
        return False
    return not 1 / times <= excess.line.allocations / excess.usual.allocations <= times


def _difference_of_other_work(rank: RankSummary, excesses: Sequence[LineExcess]) -> RankDifference:
    """What a rank holds more for work of the same kind as its peers', to be told as a note."""
    largest = max(excesses, key=lambda excess: excess.at_peak_bytes)
    more_bytes = more_at_peak(excesses)
    usual_count = largest.usual.allocations if largest.usual is not None else 0
    title = (
        f"rank {rank.rank} makes larger tensors than its peers, and another number of them:"
        f" {format_size(more_bytes)} more at its peak, {largest.line.allocations:,} allocations at"
        f" {largest.line.place}, its peers {usual_count:,}; that is another part of the work, or"
        " other requests, so it is not told as a difference"
    )
    return _as_note(rank, largest.line, more_bytes, title)


def _difference_of_other_part(
    rank: RankSummary,
    usual: Usual,
    excesses: Sequence[LineExcess],
    parameters: LineUse,
    times: float,
) -> RankDifference:
    """What a rank holds more with its part of a layer, where its peers have other parameters for it."""
    largest = max(excesses, key=lambda excess: excess.at_peak_bytes)
    higher_bytes = rank.peak_requested_bytes - usual.peak_bytes
    more_bytes = min(higher_bytes, more_at_peak(excesses))
    title = (
        f"rank {rank.rank} has a larger part of what is divided at {parameters.place}, and no more"
        f" parameters in all: these and what it computes with them, as at {largest.line.place},"
        f" are {times:.2f}x the size, with {format_size(more_bytes)} more at its peak; that is a"
        " part of the model, and no larger batch, so it is not told as a difference"
    )
    return _as_note(rank, largest.line, more_bytes, title)


def _as_note(rank: RankSummary, line: LineUse, more_bytes: int, title: str) -> RankDifference:
    """A difference that is told as a note."""
    return RankDifference(
        ranks=(rank.rank,),
        cause=OWN_WORK,
        verdict=Verdict.NOT_A_PROBLEM,
        bytes=more_bytes,
        place=line.place,
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
