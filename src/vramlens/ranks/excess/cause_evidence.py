"""Evidence: what all lines of a rank together say of the cause of each; without it, that is unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from vramlens.ranks.excess.batches import cause_of_larger
from vramlens.ranks.excess.bucket_copies import are_beside_buckets
from vramlens.ranks.excess.causes import (
    BY_STEP,
    CERTAIN_CAUSES,
    LARGER_PART,
    STAY,
    Position,
    is_built_once,
    is_of_users,
    may_be_table,
)
from vramlens.ranks.excess.line_excess import LineExcess, bytes_of
from vramlens.ranks.excess.reasons.divided_layers import are_larger_layers
from vramlens.ranks.excess.reasons.larger_part import are_of_part
from vramlens.ranks.hints import Hint
from vramlens.ranks.peers.usual import Usual
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_summary import LineUse, RankSummary
from vramlens.units import format_size

LEAST_OF_LAYERS = 0.1
"""What more layers hold is parameters to at least this share, and activations, too."""
_FEWER = 0.75
"""Of its peers' tensors, that a rank makes which computes nothing again."""
_LESS_RECOMPUTED = 0.5
"""A rank computes less again than its peers where its share is under this part of theirs."""
_Excesses = dict[str, list[LineExcess]]
"""Lines that hold more, by the cause of it."""


def with_evidence(
    by_cause: _Excesses, rank: RankSummary, usual: Usual, position: Position
) -> _Excesses:
    """The lines of a rank by the causes that have their evidence; the others' are unknown, or those
    of states that are divided.
    """
    kept = [*by_cause["pipeline_stage"], *by_cause["unknown"]]
    if are_beside_buckets(kept, rank):
        by_cause["separate_gradients"] = kept
        by_cause["pipeline_stage"], by_cause["unknown"] = [], []
    other_cause = "uneven_shard" if _has_divided_states(by_cause, usual) else "unknown"
    if not _may_have_more_layers(by_cause, position):
        by_cause[other_cause] += by_cause.pop("pipeline_stage")
    larger = by_cause.pop("uneven_batch", [])
    cause = cause_of_larger(larger, rank, usual)
    is_part = cause == "uneven_batch" and are_of_part(larger, rank, usual)
    by_cause[LARGER_PART if is_part else cause] += larger
    if not any(may_be_table(excess.line) for excess in by_cause["embedding_shard"]):
        larger = by_cause.pop("embedding_shard")
        by_cause["larger_tensors"] += [excess for excess in larger if is_of_users(excess.line)]
        by_cause[other_cause] += [excess for excess in larger if not is_of_users(excess.line)]
    is_of_table = any(excess.line.hints & Hint.EMBEDDING for excess in by_cause["embedding_shard"])
    if not is_of_table and are_larger_layers(rank, usual):
        by_cause[LARGER_PART] += by_cause.pop("embedding_shard", [])
    for excess in by_cause.pop("uneven_shard", []):
        by_cause["unknown" if _is_no_shard(excess) else "uneven_shard"].append(excess)
    # What is served has pools of its own beside the shards of its parameters.
    if not rank.trains and all(is_of_users(excess.line) for excess in by_cause["uneven_shard"]):
        by_cause["larger_tensors"] += by_cause.pop("uneven_shard")
    return {cause: excesses for cause, excesses in by_cause.items() if excesses}


def explained_by(cause: str, by_cause: Mapping[str, Sequence[LineExcess]]) -> list[LineExcess]:
    """The lines that a main cause explains.

    More layers or a larger batch show on many lines, each with what looks like a cause of its own.
    """
    others = [other for other in by_cause if other not in CERTAIN_CAUSES]
    causes = others if cause in BY_STEP else [cause]
    return list(chain.from_iterable(by_cause[other] for other in causes))


def told_of_lines(difference: RankDifference) -> RankDifference:
    """A difference of no known cause, of which the lines are recorded: they are where to look."""
    size = format_size(difference.bytes)
    place = "" if difference.place is None else f" ({difference.place})"
    return replace(
        difference,
        title=f"holds more memory at its peak, from lines that its peers have, too: {size} more"
        " than its peers",
        fix="check whether this rank keeps these tensors longer than its peers do, or makes more"
        f" or larger ones (of what ranks share out by number instead of size){place}; about {size}",
    )


def _is_no_shard(excess: LineExcess) -> bool:
    """True if a line makes what is no part of a model, in another number than its peers'."""
    line, usual = excess.line, excess.usual
    is_other_number = usual is not None and line.allocations != usual.allocations
    return line.category not in STAY and is_other_number


def _has_divided_states(by_cause: _Excesses, usual: Usual) -> bool:
    """True if only optimizer states are more, and peers have different numbers of them: ZeRO
    divides them by whole tensors.
    """
    excesses = chain.from_iterable(by_cause.values())
    more = [excess.line for excess in excesses if excess.line.category in STAY]
    is_state = all(line.category == "optimizer_state" for line in more)
    return is_state and any(is_divided(line, usual) for line in more)


def is_divided(line: LineUse, usual: Usual) -> bool:
    """True if peers have other numbers of it each, or more of it in fewer bytes."""
    counts = usual.allocations_of(line) - {line.allocations}
    return len(counts) > 1 or line.allocations < min(counts, default=0)


def _may_have_more_layers(by_cause: _Excesses, position: Position) -> bool:
    """True if lines that hold more may be those of more layers or, where ranks send, of more
    microbatches: layers have parameters and activations.
    """
    if position.sends or position.is_stage:
        return True
    stages = by_cause["pipeline_stage"]
    has_parameters = any(excess.line.category == "parameters" for excess in stages)
    excesses = chain.from_iterable(by_cause.values())
    activations = bytes_of(excess for excess in excesses if not is_built_once(excess.line))
    has_activations = activations >= LEAST_OF_LAYERS * bytes_of(stages)
    return has_activations and has_parameters


def recomputes_less(rank: RankSummary, usual: Usual) -> bool:
    """True if a rank computes far less again in its backward pass than its peers do."""
    share = rank.recomputed_share
    return share is not None and share < _LESS_RECOMPUTED * usual.recomputed_share


def may_be_kept(cause: str, line: LineUse, usual: LineUse) -> bool:
    """True if a line that holds more may keep what peers compute again: these make twice as many tensors, and
    with those of the second pass they may be smaller on average.
    """
    is_fewer = line.allocations < _FEWER * usual.allocations
    is_of_cause = cause in ("unknown", "pipeline_stage") or (cause == "uneven_batch" and is_fewer)
    return is_of_cause and line.category not in STAY
