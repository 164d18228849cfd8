"""Parameters of 32 bits, where the same modules of other ranks have 16: what is computed with them, their
gradients and their optimizer states are as wide, as a rule. Stages of a pipeline may be compared by it, for
it is no amount of work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vramlens.ground.verdict import Verdict
from vramlens.ranks.excess.causes import OF_WIDTH, WIDER_PARAMETERS, WORDS, fix_of
from vramlens.ranks.parameter_groups import modules_of
from vramlens.ranks.peers.usual import lower_median
from vramlens.ranks.rank_difference import LEAST_BYTES, LEAST_SHARE, RankDifference
from vramlens.ranks.rank_summary import ParameterGroup, RankSummary
from vramlens.units import format_size

_WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a number."""
_FEWEST_GROUPS = 4
"""A layer that is divided among ranks may have two parts on one of them; not all layers have."""
_MOST = 2 / 3
"""Of a rank's parameters, that the other has, too."""


@dataclass(frozen=True, slots=True)
class _Twice:
    """A group of parameters that takes twice as much on one rank as on another."""

    wide: ParameterGroup
    narrow: ParameterGroup


def width_differences(ranks: Sequence[RankSummary]) -> Iterator[RankDifference]:
    """Yields the ranks whose parameters are twice as wide as those of at least as many others."""
    if len({group.dtype for rank in ranks for group in rank.parameters}) < 2:
        return
    alike = _alike(ranks)
    pairs = [
        [(others, twice) for others in alike if (twice := _twice(members[0], others[0]))]
        for members in alike
    ]
    wide_count = sum(
        len(members) for members, narrower in zip(alike, pairs, strict=True) if narrower
    )
    for members, narrower in zip(alike, pairs, strict=True):
        others = [rank for narrow, _ in narrower for rank in narrow]
        if not others or len(others) < wide_count:
            continue
        usual_bytes = lower_median(other.peak_requested_bytes for other in others)
        for rank in members:
            more = min(rank.peak_requested_bytes // 2, rank.peak_requested_bytes - usual_bytes)
            if more >= max(LEAST_SHARE * usual_bytes, LEAST_BYTES):
                yield _difference(rank, narrower[0][1], more)


def _alike(ranks: Sequence[RankSummary]) -> list[list[RankSummary]]:
    """The ranks, those together whose parameters have the same modules, types and sizes: there may be
    thousands of ranks, and few of their kinds.
    """
    by_parameters: dict[frozenset[tuple[object, ...]], list[RankSummary]] = defaultdict(list)
    for rank in ranks:
        kinds = frozenset((_key(group), group.dtype, group.bytes) for group in rank.parameters)
        by_parameters[kinds].append(rank)
    return list(by_parameters.values())


def without_widths(
    differences: Sequence[RankDifference], widths: Sequence[RankDifference]
) -> list[RankDifference]:
    """The differences but those that follow from wider parameters of the same ranks."""
    wide = {rank for width in widths for rank in width.ranks}
    return [
        difference
        for difference in differences
        if difference.cause not in OF_WIDTH or not wide.issuperset(difference.ranks)
    ]


def _difference(rank: RankSummary, twice: Sequence[_Twice], more_bytes: int) -> RankDifference:
    largest = max(twice, key=lambda pair: pair.wide.bytes)
    return RankDifference(
        ranks=(rank.rank,),
        cause=WIDER_PARAMETERS,
        verdict=Verdict.LIKELY,
        bytes=more_bytes,
        place=None,
        title=f"{WORDS[WIDER_PARAMETERS]}: {format_size(more_bytes)} more than its peers",
        evidence=(
            f"{largest.wide.count:,} parameters of {largest.wide.modules} take"
            f" {format_size(largest.wide.bytes)}; as many of {largest.narrow.modules} on its peers"
            f" {format_size(largest.narrow.bytes)}, half as much",
            f"they are {largest.wide.dtype}, those of the peers {largest.narrow.dtype}; so are all"
            f" {len(twice)} groups of parameters that have the same names there",
        ),
        fix=fix_of(WIDER_PARAMETERS, None, more_bytes),
    )


def _twice(rank: RankSummary, other: RankSummary) -> list[_Twice]:
    """The groups that both have, if all of them take exactly twice as much on the first rank, and they are
    most of its parameters; else [].
    """
    theirs = {_key(group): group for group in other.parameters}
    shared = [
        _Twice(group, theirs[_key(group)]) for group in rank.parameters if _key(group) in theirs
    ]
    all_bytes = sum(group.bytes for group in rank.parameters)
    shared_bytes = sum(pair.wide.bytes for pair in shared)
    are_twice = all(map(_is_twice, shared))
    is_most = shared_bytes >= _MOST * all_bytes
    return shared if are_twice and is_most and len(shared) >= _FEWEST_GROUPS else []


def _key(group: ParameterGroup) -> tuple[str, int, str]:
    return modules_of(group), group.count, group.use


def _is_twice(pair: _Twice) -> bool:
    width, other_width = (_WIDTHS.get(group.dtype, 0) for group in (pair.wide, pair.narrow))
    return width == 2 * other_width > 0 and pair.wide.bytes == 2 * pair.narrow.bytes
