"""Cohorts: which ranks do the same work, so that one may be compared with the others."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from vramlens.ranks.summary import RankSummary
from vramlens.trace.flight import FlightGroup

# What groups of ranks that hold the same part of a model are called: DeviceMesh's dimensions,
# Megatron, DeepSpeed. Context parallel ranks hold the same part, and equal pieces of a sequence.
_SAME_WORK = re.compile(
    r"(?i)(?:^|[_\W])(?:dp|ddp|hsdp|fsdp|cp|dp_\w+|data_parallel\w*|context\w*|replicate|shard)(?:[_\W]|$)"
)
_OTHER_WORK = re.compile(r"(?i)(?:^|[_\W])(?:pp|pipeline\w*|tp|tensor\w*|ep|expert\w*)(?:[_\W]|$)")
_STAGES = re.compile(r"(?i)(?:^|[_\W])(?:pp|pipeline\w*)(?:[_\W]|$)")
SAME_PARAMETERS = "the parameters that they hold"
ALL_RANKS = "all ranks"
"""Where nothing says who does the same work."""


@dataclass(frozen=True, slots=True)
class Cohorts:
    """Ranks that are compared with each other.

    Attributes:
        members: each cohort's ranks, ascending.
        source: what says so: "process groups", "the parameters that they hold", "given", or "all
            ranks".
        staged: whether the cohorts are parts of one model (pipeline stages), so that one may hold
            more than another.
    """

    members: tuple[tuple[int, ...], ...]
    source: str
    staged: bool


def cohorts_of(ranks: Sequence[RankSummary], groups: Mapping[str, FlightGroup]) -> Cohorts:
    """The cohorts of some ranks, from what the process groups are called, else from what each
    rank holds.
    """
    numbers = sorted(one.rank for one in ranks)
    known = set(numbers)
    named: list[tuple[str, Iterable[int]]] = list(
        {(group.description, group.ranks) for group in groups.values()}
    )
    # Counted off when asked for, and not kept: a file can name hundreds of groups of a million
    #     ranks.
    spans = {group for one in ranks for group in one.groups}
    named += [(what, chain.from_iterable(map(_span, each))) for what, each in spans]
    same = [
        known.intersection(members)
        for what, members in named
        if _SAME_WORK.search(what) and not _OTHER_WORK.search(what)
    ]
    if same and any(len(members) > 1 for members in same) and set().union(*same) == known:
        joined = _joined(numbers, same)
        return Cohorts(
            joined,
            "process groups",
            len(joined) > 1 and any(_STAGES.search(what) for what, _ in named),
        )
    by_part = defaultdict(list)
    for one in ranks:
        by_part[_part(one)].append(one.rank)
    several = [tuple(sorted(part)) for part in by_part.values() if len(part) > 1]
    if len(several) > 1:
        home = max(several, key=len)
        alone = [rank for part in by_part.values() if len(part) == 1 for rank in part]
        found = [tuple(sorted((*part, *alone))) if part is home else part for part in several]
        return Cohorts(tuple(sorted(found)), SAME_PARAMETERS, True)
    return Cohorts((tuple(numbers),), ALL_RANKS, False)


def _span(span: tuple[int, int, int]) -> range:
    first, count, step = span
    return range(first, first + count * step, step)


def _joined(numbers: Sequence[int], groups: Sequence[set[int]]) -> tuple[tuple[int, ...], ...]:
    """Ranks that share a group, directly or through others: replicas of shards are replicas of
    each other.
    """
    home = {rank: rank for rank in numbers}

    def root(rank: int) -> int:
        while home[rank] != rank:
            home[rank] = home[home[rank]]
            rank = home[rank]
        return rank

    for group in groups:
        ordered = sorted(group)
        for other in ordered[1:]:
            home[root(other)] = root(ordered[0])
    found = defaultdict(list)
    for rank in numbers:
        found[root(rank)].append(rank)
    return tuple(sorted(map(tuple, found.values())))


def _part(one: RankSummary) -> tuple[tuple[str, int], ...]:
    """What part of the model a rank holds: its lines that make parameters, and how many tensors
    each makes.
    """
    return tuple(
        sorted(
            (str(line.place), line.allocations)
            for line in one.lines
            if line.category == "parameters"
        )
    )
