"""Larger batches: what shows them, and what levels them."""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.ranks.excess.causes import is_built_once
from vramlens.ranks.excess.line_excess import LineExcess, bytes_of, growth_of
from vramlens.ranks.peers.usual import Usual
from vramlens.ranks.rank_summary import RankSummary
from vramlens.units import format_size

_LEAST = 0.1
"""Batches are larger where lines with this share of what comes and goes are."""


def are_batches(larger: Sequence[LineExcess], rank: RankSummary, usual: Usual) -> bool:
    """True if lines of some weight are larger: batches show on more than a single call, such
    as a trial of algorithms.
    """
    moving = [usual.line(line) for line in rank.lines if not is_built_once(line)]
    all_bytes = sum(line.peak_bytes for line in moving if line is not None)
    larger_bytes = sum(excess.usual.peak_bytes for excess in larger if excess.usual is not None)
    return larger_bytes >= _LEAST * all_bytes


def are_all_larger(experts: Sequence[LineExcess], larger: Sequence[LineExcess]) -> bool:
    """True if longer sequences make all lines larger, those of experts no more than others."""
    places = {excess.line.place for excess in experts}
    others = [excess for excess in larger if excess.line.place not in places]
    is_much = 4 * bytes_of(others) >= bytes_of(experts)
    return is_much and growth_of(others) >= growth_of(experts) / 2


def leveled(excesses: Sequence[LineExcess], rank: RankSummary, usual: Usual) -> list[str]:
    """One sentence on the batches of all, and the highest peak, if the ranks shared the work
    evenly.
    """
    # As many allocations of each: ranks may have recorded more or fewer steps.
    pairs = [
        (excess.line.mean_bytes * excess.usual.allocations, excess.usual.total_bytes)
        for excess in excesses
        if excess.usual is not None
    ]
    total_bytes = sum(line_bytes for line_bytes, _ in pairs)
    usual_bytes = sum(line_bytes for _, line_bytes in pairs)
    if total_bytes <= usual_bytes or not usual_bytes:
        return []
    ratio, world = total_bytes / usual_bytes, max(2, len(usual.ranks))
    even = (world - 1 + ratio) / world
    peak = usual.peak_bytes + (rank.peak_requested_bytes - usual.peak_bytes) // world
    return [
        f"if balanced (estimated): {100 * even / ratio:.0f}% of its current batch for rank"
        f" {rank.rank} and {100 * even:.0f}% for the others, with the same number of samples "
        f"in total; the highest peak drops to about {format_size(peak)}"
    ]
