"""The main cause: of those that show on many lines of a rank, the one that explains the others; and
what lines show together that have no cause of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vramlens.ranks.excess.batches import are_all_larger
from vramlens.ranks.excess.cause_evidence import LEAST_OF_LAYERS
from vramlens.ranks.excess.causes import CERTAIN_CAUSES, SAME_SHARE, STAY
from vramlens.ranks.excess.line_excess import LineExcess, bytes_of, more_at_peak
from vramlens.ranks.hints import Hint
from vramlens.ranks.peers.steps_against_peers import PeerStepPeaks
from vramlens.ranks.rank_summary import RankSummary

BUILT_LARGER = "larger_tensors"
_MOST = 0.75
"""Of what is held for longer: that, or more, is gradients; of the buckets: as much as those hold."""
_OF_BATCHES = ("uneven_batch", "moe_hot_rank", "wider_numbers")


def main_cause(by_cause: Mapping[str, Sequence[LineExcess]], more_bytes: int) -> str | None:
    """The main cause of a rank's excess; None where no cause shows on many lines.

    Args:
        by_cause: the lines that hold more, by the cause of it.
        more_bytes: by how much the rank's peak is above the usual one.
    """
    sums = {
        cause: bytes_of(excesses)
        for cause, excesses in by_cause.items()
        if cause not in CERTAIN_CAUSES
    }
    if not sums:
        return None
    stages = by_cause.get("pipeline_stage", ())
    layers = bytes_of(excess for excess in stages if excess.line.category in STAY)
    if layers > max(LEAST_OF_LAYERS * more_bytes, 0):
        return "pipeline_stage"  # more layers have more activations, too
    main = max(sums, key=lambda cause: (sums[cause], cause != "unknown"))
    if main == "moe_hot_rank" and are_all_larger(by_cause[main], by_cause.get("uneven_batch", ())):
        return "uneven_batch"
    return main


def is_beside_batches(by_cause: Mapping[str, Sequence[LineExcess]]) -> bool:
    """True if lines hold more because of larger batches: these have no part in what was built before
    the first step, which is a fault of its own then.
    """
    return any(by_cause.get(cause) for cause in _OF_BATCHES)


def cause_together(excesses: Sequence[LineExcess], rank: RankSummary, steps: PeerStepPeaks) -> str:
    """The cause that lines without one of their own show together; "unknown" where they show none."""
    if _are_beside_buckets(excesses, rank):
        return "separate_gradients"
    return "leak" if steps.rises(rank) else "unknown"


def _are_beside_buckets(excesses: Sequence[LineExcess], rank: RankSummary) -> bool:
    """True if what backward passes make, and peers let go of, is as large as the buckets of DDP."""
    buckets = sum(
        line.at_peak_bytes
        for line in rank.lines
        if line.category == "gradients" and line.hints & Hint.DDP
    )
    kept = more_at_peak(excess for excess in excesses if _is_kept_backward(excess))
    more = more_at_peak(excesses)
    return _MOST * buckets <= kept <= buckets / _MOST and kept >= _MOST * more > 0


def _is_kept_backward(excess: LineExcess) -> bool:
    """True if a backward pass makes as many at a line as on the peers, as large, and keeps more."""
    line, usual = excess.line, excess.usual
    if usual is None or line.phase != "backward" or line.allocations != usual.allocations:
        return False
    return abs(line.total_bytes - usual.total_bytes) <= SAME_SHARE * usual.total_bytes
