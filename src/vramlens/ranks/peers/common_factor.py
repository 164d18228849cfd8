"""The common factor of the ranks that differ: all ranks of one host, one local rank, one model of
GPU, or one process group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_summary import RankSummary, Span, ranks_of_span

_FACTORS: tuple[tuple[str, Callable[[RankSummary], object]], ...] = (
    ("local rank", lambda rank: rank.local_rank),
    ("GPU model", lambda rank: rank.device_name),
    ("host", lambda rank: rank.host),
)

_FEW_RANKS, _FEW = 2, 0.125
"""So many ranks, or this share of all, may have one fault though nothing is common to them."""


def with_common_factors(
    differences: Iterable[RankDifference], ranks: Sequence[RankSummary]
) -> tuple[RankDifference, ...]:
    """The differences, each that touches exactly the ranks of one host, local rank, GPU model or
    group saying so in its evidence; without what is chance.
    """
    names = _names_of_sets(ranks)
    return tuple(
        _with_factor(difference, names.get(frozenset(difference.ranks)))
        for difference in differences
        if not _is_chance(difference, names, len(ranks))
    )


def _is_chance(difference: RankDifference, names: Collection[frozenset[int]], world: int) -> bool:
    """True if many ranks that have nothing in common reserve what they do not use: they had other
    batches, and which of them fit what is cached is chance. Settings, or a line, would be a reason.
    """
    odd = frozenset(difference.ranks)
    has_reason = difference.cause != "allocator" or difference.place is not None
    if has_reason or len(odd) <= max(_FEW_RANKS, _FEW * world):
        return False
    return not any(odd <= members for members in names)


def _with_factor(difference: RankDifference, name: str | None) -> RankDifference:
    if name is None:
        return difference
    return replace(
        difference,
        evidence=(
            f"these are all the ranks of {name}, and no other rank has this",
            *difference.evidence,
        ),
    )


def _names_of_sets(ranks: Sequence[RankSummary]) -> dict[frozenset[int], str]:
    """The names of sets of two ranks and more, but not all; of one set with several names the
    last: a host's before a card's, that before a local rank's, and all of them before a group's.
    """
    present = {rank.rank for rank in ranks}
    names: dict[frozenset[int], str] = {}
    groups = {group for rank in ranks for group in rank.groups}
    for description, spans in groups:
        members = present & _ranks_in(spans, len(present))
        names[frozenset(members)] = f"group {description}"
    for words, key_of in _FACTORS:
        by_key = _ranks_by_key(ranks, key_of)
        names |= {frozenset(members): f"{words} {key}" for key, members in by_key.items()}
    return {members: name for members, name in names.items() if 1 < len(members) < len(present)}


def _ranks_by_key(
    ranks: Sequence[RankSummary], key_of: Callable[[RankSummary], object]
) -> dict[object, set[int]]:
    """The ranks of which something is the same; those that do not say are left out."""
    by_key: dict[object, set[int]] = defaultdict(set)
    for rank in ranks:
        key = key_of(rank)
        if key is not None:
            by_key[key].add(rank.rank)
    return by_key


def _ranks_in(spans: Sequence[Span], largest: int) -> set[int]:
    """The ranks of a group; none of a group of far more than there are: a file can name a
    million.
    """
    if sum(count for _, count, _ in spans) > largest:
        return set()
    return set(chain.from_iterable(map(ranks_of_span, spans)))
