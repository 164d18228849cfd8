"""Parameters that FSDP gathers and that a rank keeps, where its peers shard them again after the forward pass
and gather them once more for the backward pass.
"""

from __future__ import annotations

from vramlens.ranks.excess.causes import NOT_RESHARDED, share_more_often
from vramlens.ranks.excess.line_excess import LineExcess, more_at_peak
from vramlens.ranks.excess.rank_against_peers import RankAgainstPeers
from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_difference import RankDifference

_OTHER = ("parameters", "activations")
"""Categories of what is sharded, and of what is computed with it where tensors are divided."""
_LESS_OFTEN = 0.75
"""Times as often as its peers: they gather each layer twice in a step, it does once at most."""


def gathered_differences(beside: RankAgainstPeers) -> list[RankDifference]:
    """What a rank holds more because it keeps what it has gathered; [] where it does not."""
    if beside.recomputes_less:
        return []
    lines = [excess for excess in map(beside.excess, beside.rank.lines) if _is_kept(excess)]
    excess_bytes = min(beside.more, more_at_peak(lines))
    if excess_bytes < beside.least:
        return []
    return [beside.from_lines(NOT_RESHARDED, excess_bytes, lines)]


def _is_kept(excess: LineExcess) -> bool:
    """Whether a line gathers less often than on the peers, and more of it is in use at the peak."""
    line, usual = excess.line, excess.usual
    if usual is None or not line.hints & Hint.SHARDED or line.category in _OTHER:
        return False
    return share_more_often(line, usual) <= _LESS_OFTEN - 1 and excess.at_peak_bytes > 0
