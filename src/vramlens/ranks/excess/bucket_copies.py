"""Gradients beside the buckets of DistributedDataParallel: with ``gradient_as_bucket_view`` there is
one of both, else two.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.ranks.excess.causes import SAME_SHARE
from vramlens.ranks.excess.line_excess import LineExcess, more_at_peak
from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import RankSummary

_MOST = 0.75
"""Of what a rank holds more: that, or more, is gradients; of the buckets: as much as those hold."""
_FEWEST_LINES = 3
"""A hook keeps gradients, too, at its own line."""


def are_beside_buckets(excesses: Sequence[LineExcess], rank: RankSummary) -> bool:
    """True if what backward passes make, and peers let go of, is as large as the buckets."""
    buckets = sum(
        line.at_peak_bytes
        for line in rank.lines
        if line.category == "gradients" and line.hints & Hint.DDP
    )
    gradients = list(filter(_is_kept_backward, excesses))
    kept, more = more_at_peak(gradients), more_at_peak(excesses)
    is_as_much = _MOST * buckets <= kept <= buckets / _MOST
    return len(gradients) >= _FEWEST_LINES and is_as_much and kept >= _MOST * more > 0


def _is_kept_backward(excess: LineExcess) -> bool:
    """True if a backward pass makes as much at a line as on the peers, or the gradients beside it."""
    line, usual = excess.line, excess.usual
    if usual is None or line.phase != "backward":
        return False
    if not usual.allocations <= line.allocations <= 2 * usual.allocations:
        return False
    is_as_much = abs(line.total_bytes - usual.total_bytes) <= SAME_SHARE * usual.total_bytes
    return is_as_much or line.category == "gradients"
