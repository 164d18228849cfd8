"""The main cause: of those that show on many lines of a rank, the one that explains the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vramlens.ranks.excess.batches import are_all_larger
from vramlens.ranks.excess.cause_evidence import LEAST_OF_LAYERS
from vramlens.ranks.excess.causes import CERTAIN_CAUSES, STAY
from vramlens.ranks.excess.line_excess import LineExcess, bytes_of

OF_BATCHES = ("uneven_batch", "moe_hot_rank", "wider_numbers")


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


def sure_causes(by_cause: Mapping[str, Sequence[LineExcess]]) -> Sequence[str]:
    """The causes that are told by themselves: those that one call gives away; and beside larger
    batches what was built before the first step, in which batches have no part.
    """
    is_beside_batches = any(by_cause.get(cause) for cause in OF_BATCHES)
    return (*CERTAIN_CAUSES, "larger_tensors") if is_beside_batches else CERTAIN_CAUSES
