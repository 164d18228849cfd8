"""Parameters that all ranks keep whole, beside those that they divide: what a call or a plan left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.ranks.hints import Hint
from vramlens.ranks.parameter_groups import modules_of
from vramlens.ranks.rank_difference import LEAST_BYTES
from vramlens.ranks.rank_summary import ParameterGroup, RankSummary
from vramlens.ranks.rank_words import who_of
from vramlens.units import format_size

_LEAST_SHARE = 0.05
"""Of the peak: norms and biases stay whole in many plans."""
_NEARLY_ALL = 0.9
_MOST_NAMED = 3
_EXPERTS = re.compile(r"expert|moe", re.IGNORECASE)
"""Each rank has other ones, whole."""


def whole_parameters(ranks: Sequence[RankSummary]) -> Iterator[Finding]:
    """What every rank keeps whole of parameters that it trains, although FSDP or a plan of tensor
    parallelism divides others like them; nothing where a rank has none of these.
    """
    groups_by_rank = [_whole_groups(rank) for rank in ranks]
    if len(ranks) < 2 or not all(groups_by_rank):
        yield from _undivided(ranks)
        return
    rank, groups = min(
        zip(ranks, groups_by_rank, strict=True), key=lambda entry: _bytes_of(entry[1])
    )
    size_bytes = _bytes_of(groups)
    if size_bytes < max(LEAST_BYTES, _LEAST_SHARE * rank.peak_requested_bytes):
        return
    parts = max(group.parts for group in rank.parameters)
    saved_bytes = size_bytes - size_bytes // parts
    names = ", ".join(group.modules for group in groups[:_MOST_NAMED])
    more = " and others" if len(groups) > _MOST_NAMED else ""
    yield Finding(
        id="whole_parameters",
        verdict=Verdict.LIKELY,
        title=f"{who_of(len(ranks), len(ranks))} keep {format_size(size_bytes)} of parameters"
        f" whole, although others are divided by {parts}: {names}{more}",
        bytes=saved_bytes,
        place=None,
        evidence=("their gradients and optimizer states are whole on each rank, too",),
        fix=_remedy(rank, saved_bytes),
    )


def _undivided(ranks: Sequence[RankSummary]) -> Iterator[Finding]:
    """What every rank keeps whole where fully_shard divides nothing at all: each of its meshes shards over one
    rank.
    """
    if len(ranks) < 2 or not all(map(_divides_nothing, ranks)):
        return
    rank = min(ranks, key=lambda summary: _bytes_of(summary.parameters))
    size_bytes = _bytes_of(rank.parameters)
    if size_bytes < max(LEAST_BYTES, _LEAST_SHARE * rank.peak_requested_bytes):
        return
    saved_bytes = size_bytes - size_bytes // len(ranks)
    yield Finding(
        id="whole_parameters",
        verdict=Verdict.LIKELY,
        title=f"{who_of(len(ranks), len(ranks))} keep all {format_size(size_bytes)} of parameters"
        " whole, although fully_shard was called on their modules",
        bytes=saved_bytes,
        place=None,
        evidence=("they are DTensors of which each rank has all, with their gradients and states",),
        fix="pass a mesh that shards over several ranks: of two dimensions fully_shard replicates"
        " over the first and shards over the second, whatever their names are (divided by all"
        f" ranks, about {format_size(saved_bytes)} less of parameters, and as much of each of"
        " their gradients and states)",
    )


def _divides_nothing(rank: RankSummary) -> bool:
    """True if fully_shard ran, and nearly all that a rank trains are DTensors with one part."""
    whole_bytes = _bytes_of([group for group in rank.parameters if group.parts == 1])
    is_replicated = any(line.hints & Hint.REPLICATED for line in rank.lines)
    return (
        _is_fully_sharded(rank)
        and not is_replicated
        and 0 < _NEARLY_ALL * _bytes_of(rank.parameters) <= whole_bytes
    )


def _remedy(rank: RankSummary, saved_bytes: int) -> str:
    size = format_size(saved_bytes)
    if _is_fully_sharded(rank):
        return (
            "call fully_shard on the model itself, too, after its layers: parameters that no call"
            " covers stay whole, and their gradients are not averaged over the ranks (about"
            f" {size} less of parameters, and as much of each of their gradients and states)"
        )
    return (
        "compare the names in the plan of parallelize_module with model.named_modules(): a name"
        f" that fits no module is only warned of (about {size} less of parameters, and as much of"
        " each of their gradients and states)"
    )


def _whole_groups(rank: RankSummary) -> list[ParameterGroup]:
    """The whole parameters that a rank trains and that it might divide, the largest group first."""
    divided = [group for group in rank.parameters if group.parts > 1]
    undivided = [
        group
        for group in rank.parameters
        if group.parts <= 1 and group.use == "stepped" and not _EXPERTS.search(group.modules)
    ]
    if not divided:
        return []
    if _is_fully_sharded(rank):
        return undivided
    # Of tensor parallelism: what stands in the same layers. Embeddings are often undivided on purpose.
    layers = {_layer(group) for group in divided} - {""}
    return [group for group in undivided if _layer(group) in layers]


def _is_fully_sharded(rank: RankSummary) -> bool:
    return any(line.hints & Hint.FULLY_SHARDED for line in rank.lines)


def _layer(group: ParameterGroup) -> str:
    """The path of the numbered layers that a group's modules are in; "" of what is in none."""
    before, number, _ = modules_of(group).partition("{}")
    return before + number


def _bytes_of(groups: Sequence[ParameterGroup]) -> int:
    return sum(group.bytes for group in groups)
