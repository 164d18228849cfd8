"""A larger part of what is divided: a rank's share of a model, or of the data that it keeps, is
larger, and with it all that is computed from it. No batch is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vramlens.ranks.excess.batches import leveled
from vramlens.ranks.excess.causes import LARGER_PART, SAME_SHARE, STAY
from vramlens.ranks.excess.line_excess import LineExcess
from vramlens.ranks.excess.reasons.divided_layers import divided_parameters
from vramlens.ranks.excess.reasons.wider_numbers import words_of_same_batch, words_of_wider
from vramlens.ranks.peers.usual import Usual
from vramlens.ranks.rank_summary import LineUse, RankSummary
from vramlens.units import KIB, format_size

_MOST = 0.5
_NEAR = 0.03
"""By how much two tensors of one part may differ in how many times as large they are."""
_LEAST_BYTES = 64 * KIB
_BEFORE = "other"
"""The phase of what is built before the first step."""


def are_of_part(larger: Sequence[LineExcess], rank: RankSummary, usual: Usual) -> bool:
    """True if larger tensors are those of a larger part, and no larger batch.

    No batch makes the parameters of a divided layer larger. A batch is gone when its step ends: of
    a rank that trains, most of what it holds more is kept for a whole step and longer. Without a
    model there is no batch, either: then it is enough that what was built before the first step is
    as many times as large as what a step makes. Servers keep what belongs to their requests.
    """
    if divided_parameters(larger, rank, usual) is not None:
        return True
    if not rank.trains and _has_model(rank):
        return False
    return _is_kept(rank, usual) or (not rank.trains and _has_same_factor(larger, rank, usual))


def words_of_larger(
    cause: str, larger: Sequence[LineExcess], rank: RankSummary, usual: Usual
) -> list[str]:
    """Sentences on larger tensors: of batches what levels them, of others what shows that they are
    none.
    """
    if cause == LARGER_PART:
        return [_why_no_batch(larger, rank, usual)]
    if cause == "wider_numbers":
        return words_of_wider(larger, rank, usual)
    if cause == "larger_tensors":
        return words_of_same_batch(rank, usual)
    return leveled(larger, rank, usual) if cause == "uneven_batch" else []


def _why_no_batch(larger: Sequence[LineExcess], rank: RankSummary, usual: Usual) -> str:
    divided = divided_parameters(larger, rank, usual)
    if divided is not None:
        parameters, times = divided
        return (
            f"the parameters of {parameters.place} are {times:.2f}x the size, too, so it is not a"
            " larger batch"
        )
    if _is_kept(rank, usual):
        kept_bytes, more_bytes = _kept_of_more(rank, usual)
        return (
            f"{format_size(kept_bytes)} of the {format_size(more_bytes)} more stay from one step"
            " to the next, so it is not a larger batch"
        )
    return (
        f"what is built before the first step is {_factor(larger):.2f}x the size, too, and nothing"
        " is trained, so it is not a larger batch"
    )


def _is_kept(rank: RankSummary, usual: Usual) -> bool:
    kept_bytes, more_bytes = _kept_of_more(rank, usual)
    return kept_bytes > _MOST * more_bytes


def _kept_of_more(rank: RankSummary, usual: Usual) -> tuple[int, int]:
    """What lines with larger tensors hold more at the peak because these are kept from step to
    step, and all that lines hold more there; without what was built before the first step, which is
    a difference of its own. What leaks is kept, too, and says nothing.
    """
    leaking = {leak.place for leak in rank.leaks}
    kept_bytes = more_bytes = 0
    for line in rank.lines:
        if line.static:
            continue
        more = max(0, line.at_peak_bytes - usual.line_at_peak_bytes(line))
        more_bytes += more
        peer = usual.line(line)
        if (
            peer is not None
            and line.place not in leaking
            and line.times_as_large(peer) > 1 + SAME_SHARE
        ):
            is_of_model = line.category in STAY
            part_bytes = line.at_peak_bytes if is_of_model else line.kept_bytes - peer.kept_bytes
            kept_bytes += min(more, max(0, part_bytes))
    return kept_bytes, more_bytes


def _has_model(rank: RankSummary) -> bool:
    """True if a rank has parameters, or may have had some before the recording began."""
    return rank.before_bytes > 0 or any(line.category == "parameters" for line in rank.lines)


def _has_same_factor(larger: Sequence[LineExcess], rank: RankSummary, usual: Usual) -> bool:
    """True if something that was built before the first step is as many times as large as the
    largest of what steps make.
    """
    factor = _factor(larger)
    return factor > 1 + SAME_SHARE and any(
        abs(line.times_as_large(peer) / factor - 1) <= _NEAR for line, peer in _built(rank, usual)
    )


def _built(rank: RankSummary, usual: Usual) -> Iterator[tuple[LineUse, LineUse]]:
    """Yields what was built before the first step, as often as on a typical rank, with that."""
    for line in rank.lines:
        is_built = line.phase == _BEFORE and line.peak_bytes >= _LEAST_BYTES
        peer = usual.line(line) if is_built else None
        if peer is not None and line.allocations == peer.allocations:
            yield line, peer


def _factor(larger: Sequence[LineExcess]) -> float:
    """How many times as large the tensors are of the line of a step that holds most of what is
    more.
    """
    of_steps = [excess for excess in larger if excess.line.phase != _BEFORE]
    largest = max(of_steps, key=lambda excess: excess.bytes, default=None)
    if largest is None or largest.usual is None:
        return 0.0
    return largest.line.times_as_large(largest.usual)
