"""Cohorts: which ranks do the same work, so that one may be compared with the others."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from vramlens.ranks.hints import Hint
from vramlens.ranks.peers.group_places import (
    GroupPlace,
    by_place,
    by_size_of_group,
    larger_parts,
    places_with_work,
    stages_by_place,
    tilings,
    uneven_places,
)
from vramlens.ranks.peers.placed_tables import PlacedTables
from vramlens.ranks.peers.roles import (
    roles_of_calls,
    roles_of_code,
    roles_of_groups,
    roles_of_parts,
    roles_of_two,
)
from vramlens.ranks.peers.schedules import are_run_by_schedule
from vramlens.ranks.peers.usual import most_alike
from vramlens.ranks.peers.workloads import ranks_by_workload
from vramlens.ranks.rank_difference import LEAST_SHARE
from vramlens.ranks.rank_summary import RankSummary, ranks_of_span
from vramlens.trace.flight import FlightGroup

# What groups of ranks that hold the same part of a model are called: DeviceMesh's dimensions,
# Megatron, DeepSpeed. Context parallel ranks hold the same part, and equal pieces of a sequence.
_SAME_WORK = re.compile(
    r"(?i)(?:^|[_\W])"
    r"(?:dp|ddp|hsdp|fsdp|cp|dp_\w+|data_parallel\w*|context\w*|replicate|shard)"
    r"(?:[_\W]|$)"
)
_OTHER_WORK = re.compile(r"(?i)(?:^|[_\W])(?:pp|pipeline\w*|tp|tensor\w*|ep|expert\w*)(?:[_\W]|$)")
_STAGES = re.compile(r"(?i)(?:^|[_\W])(?:pp|pipeline\w*)(?:[_\W]|$)")
GROUPS = "process groups"
SAME_PARAMETERS = "the parameters that they hold"
ROLES = "who trains"
PROGRAMS = "the programs that they run"
LAST_STAGE = "the loss, which the last stage computes"
PLACES = "their places in process groups"
WORKLOADS = "what they serve"
PARTS = "the sizes of their parts"
ALL_RANKS = "all ranks"
"""Where nothing says who does the same work."""
_COPY = 2.05
"""Times the weights, or their part, that a copy of another width is."""
_LARGER_STAGE = 4
"""Times the ranks of another stage, at most: one that is divided by tensors has more of them."""
_FEWEST_REPLICAS = 3
"""Of fewer, either may be the odd one."""
_INFERENCE = ("forward", "evaluation")
_Group = tuple[str, tuple[int, ...]]
"""What a process group is called, and which of the ranks are in it."""


@dataclass(frozen=True, slots=True)
class RankCohorts:
    """Ranks that are compared with each other.

    Attributes:
        members: each cohort's ranks, ascending.
        source: what says so: "the programs that they run", "process groups", "who trains", "the
            loss, which the last stage computes", "the parameters that they hold", "what they
            serve", "their places in process groups", "the sizes of their parts", or "all ranks".
        staged: whether the cohorts are parts of one model (pipeline stages), so that one may hold
            more than another.
        places: places in process groups that have work of their own.
        kinds: the ranks by what they serve, where that differs.
    """

    members: tuple[tuple[int, ...], ...]
    source: str
    staged: bool
    places: tuple[GroupPlace, ...] = ()
    kinds: tuple[tuple[int, ...], ...] = ()


def cohorts_of(
    ranks: Sequence[RankSummary], groups: Mapping[str, FlightGroup], *, sends: bool = False
) -> RankCohorts:
    """The cohorts of some ranks, from the programs that they run and what the process groups are
    called, else from what each rank holds. ``sends``: whether ranks are known to talk point to
    point.
    """
    named_groups = _named_groups(ranks, groups)
    return (
        (_cohorts_of_stages(ranks) if are_run_by_schedule(ranks) else None)
        or _cohorts_of_programs(ranks, named_groups)
        or _cohorts_of_groups(ranks, named_groups)
        or _cohorts_of_two(ranks)
        or _cohorts_of_stages(ranks)
        or _cohorts_of_roles(ranks)
        or _cohorts_of_parameters(ranks, named_groups, sends=sends)
        or _cohorts_of_replicas(ranks, named_groups)
    )


def _numbers(ranks: Iterable[RankSummary]) -> tuple[int, ...]:
    return tuple(sorted(summary.rank for summary in ranks))


def _named_groups(
    ranks: Sequence[RankSummary], groups: Mapping[str, FlightGroup]
) -> tuple[_Group, ...]:
    """The process groups of recordings and flight records."""
    present = frozenset(_numbers(ranks))
    # Counted off one at a time: a file can name hundreds of groups of a million ranks.
    members: chain[tuple[str, Iterable[int]]] = chain(
        {(group.description, group.ranks) for group in groups.values()},
        (
            (name, chain.from_iterable(map(ranks_of_span, spans)))
            for name, spans in {group for summary in ranks for group in summary.groups}
        ),
    )
    return tuple(
        sorted((name, tuple(filter(present.__contains__, inside))) for name, inside in members)
    )


def _cohorts_of_programs(
    ranks: Sequence[RankSummary], groups: Sequence[_Group]
) -> RankCohorts | None:
    """The ranks of each role, where roles run programs of their own; else None. That they are roles
    is also known by process groups of a role's ranks alone, by some that do not train, or by how
    many there are.
    """
    roles = roles_of_code(ranks)
    if not roles or not (_have_groups(roles, groups) or _cohorts_of_roles(ranks)):
        inside = [members for _, members in groups]
        roles = roles_of_groups(ranks, inside) or roles_of_parts(ranks) or roles_of_calls(ranks)
    if not roles:
        return None
    cohorts = chain.from_iterable(_replicas(role, groups) or [role] for role in roles)
    return RankCohorts(tuple(sorted(cohorts)), PROGRAMS, staged=False)


def _have_groups(roles: Iterable[tuple[int, ...]], groups: Sequence[_Group]) -> bool:
    """True if all ranks of each role of several are in groups of that role alone."""
    of_several = [frozenset(role) for role in roles if len(role) > 1]
    inside = [frozenset(members) for _, members in groups if len(members) > 1]
    return bool(of_several) and all(
        role <= frozenset[int]().union(*(members for members in inside if members <= role))
        for role in of_several
    )


def _replicas(numbers: Sequence[int], groups: Sequence[_Group]) -> tuple[tuple[int, ...], ...]:
    """Some ranks by the groups of replicas or shards that they share; () where these do not cover
    them.
    """
    inside = set(numbers)
    cohorts = [
        inside.intersection(members)
        for name, members in groups
        if _SAME_WORK.search(name) and not _OTHER_WORK.search(name)
    ]
    cohorts = [cohort for cohort in cohorts if cohort]
    if max(map(len, cohorts), default=0) < 2 or set().union(*cohorts) != inside:
        return ()
    return _joined(numbers, cohorts)


def _cohorts_of_groups(
    ranks: Sequence[RankSummary], groups: Sequence[_Group]
) -> RankCohorts | None:
    """Cohorts where groups of replicas or shards cover all ranks; else None."""
    replicas = _replicas(_numbers(ranks), groups)
    if not replicas:
        return None
    stages = _stages_of(groups)
    uneven = () if stages else uneven_places(ranks, groups)
    are_named = any(_OTHER_WORK.search(name) for name, _ in groups)
    alike = uneven or (replicas if are_named else _with_copies_joined(replicas, ranks))
    joined = _without_other_roles(alike, ranks)
    in_order = sorted(joined, key=lambda cohort: (stages.get(cohort[0], 0), cohort))
    has_stages = bool(stages) and len(joined) > 1
    return RankCohorts(tuple(in_order), GROUPS, staged=has_stages)


def _with_copies_joined(
    cohorts: Sequence[tuple[int, ...]], ranks: Sequence[RankSummary]
) -> tuple[tuple[int, ...], ...]:
    """The cohorts, as one those that hold the same parameters, where most of these have the same
    peak, too: no group's name says that they are copies of each other.
    """
    present = {summary.rank: summary for summary in ranks}
    usual_ranks = [_usual_rank([present[rank] for rank in cohort]) for cohort in cohorts]
    parameters = [_parameters_of(summary) for summary in usual_ranks]
    most_common, _ = Counter(parameters).most_common(1)[0]
    copies = [index for index, held in enumerate(parameters) if held == most_common]
    peaks = [usual_ranks[index].peak_requested_bytes for index in copies]
    alike = most_alike(peaks, 1 + LEAST_SHARE)
    if len(copies) < _FEWEST_REPLICAS or 2 * alike <= len(cohorts) or not most_common:
        return tuple(cohorts)
    of_copies = tuple(sorted(chain.from_iterable(cohorts[index] for index in copies)))
    other_cohorts = [cohort for index, cohort in enumerate(cohorts) if index not in copies]
    return tuple(sorted([of_copies, *other_cohorts]))


def _usual_rank(ranks: Sequence[RankSummary]) -> RankSummary:
    """The one with the median peak."""
    by_peak = sorted(ranks, key=lambda summary: summary.peak_requested_bytes)
    return by_peak[(len(by_peak) - 1) // 2]


def _parameters_of(summary: RankSummary) -> frozenset[tuple[str, int, int]]:
    """The lines that make parameters, how many, and of which size."""
    return frozenset(
        (str(line.place), line.allocations, line.peak_bytes)
        for line in summary.lines
        if line.category == "parameters"
    )


def _stages_of(groups: Iterable[_Group]) -> dict[int, int]:
    """The stage of each rank: its place in the group of a pipeline. Ranks of one stage need not come
    one after the other, as where the pipeline is the innermost coordinate.
    """
    return {
        rank: stage
        for name, members in groups
        if _STAGES.search(name)
        for stage, rank in enumerate(members)
    }


def _without_other_roles(
    cohorts: Iterable[tuple[int, ...]], ranks: Sequence[RankSummary]
) -> tuple[tuple[int, ...], ...]:
    """The cohorts, those with several ranks of each role in two: a group may hold all ranks."""
    inferring_ranks = set(_numbers(filter(_only_infers, ranks)))
    divided: list[tuple[int, ...]] = []
    for cohort in cohorts:
        roles = [
            tuple(rank for rank in cohort if (rank in inferring_ranks) == infers)
            for infers in (False, True)
        ]
        divided += roles if min(map(len, roles)) > 1 else [cohort]
    return tuple(sorted(divided))


def _cohorts_of_two(ranks: Sequence[RankSummary]) -> RankCohorts | None:
    """Two ranks that do different work, each a cohort; else None."""
    roles = roles_of_two(ranks)
    return RankCohorts(roles, PROGRAMS, staged=False) if roles else None


def _cohorts_of_roles(ranks: Sequence[RankSummary]) -> RankCohorts | None:
    """Those that train, and those that only generate or judge for them; None where all do one.

    Of two that do not train, one may generate and the other one judge: no third says which of them
    is usual.
    """
    inferring_ranks = _numbers(filter(_only_infers, ranks))
    trainers = tuple(rank for rank in _numbers(ranks) if rank not in set(inferring_ranks))
    if not trainers or not inferring_ranks:
        return None
    roles = [inferring_ranks] if len(inferring_ranks) > 2 else [(rank,) for rank in inferring_ranks]
    return RankCohorts((trainers, *roles), ROLES, staged=False)


def _only_infers(summary: RankSummary) -> bool:
    if summary.trains or summary.died:  # one that ran out of memory would have trained
        return False
    is_spare = not summary.step_peaks and bool(summary.lines)
    return is_spare or any(line.phase in _INFERENCE for line in summary.lines)


def _cohorts_of_stages(ranks: Sequence[RankSummary]) -> RankCohorts | None:
    """The stages of a pipeline: those that compute a loss are the last ones of equal blocks of
    ranks, or the last of each block, and further blocks before them train. Else None.
    """
    numbers, last = _numbers(ranks), _numbers(filter(_computes_loss, ranks))
    world = len(numbers)
    is_whole = numbers == tuple(range(world))
    if not is_whole or not 0 < len(last) < world or world % len(last):
        return None
    training = {summary.rank for summary in ranks if summary.trains}
    stages = world // len(last)
    for layout in (_blocks(world, stages), _strides(world, stages)):
        if layout[-1] == last and _train_at_the_end(layout, training):
            return RankCohorts(layout, LAST_STAGE, staged=True)
    return None


def _train_at_the_end(layout: Sequence[tuple[int, ...]], training: Set[int]) -> bool:
    """True if the last stages train, more than one of them; those before may be frozen. Of one that
    trains alone, the others may be teachers.
    """
    frozen = sum(training.isdisjoint(stage) for stage in layout)
    are_last = training == set(chain.from_iterable(layout[frozen:]))
    return are_last and len(layout) - frozen > 1


def _are_stages(ranks: Sequence[RankSummary]) -> bool:
    """True if ranks hold the same layers, three of them and more, of which the first or the last has
    fewer, and these two have parameters that no other rank has.
    """
    if len(ranks) < _FEWEST_REPLICAS:
        return False
    counts: dict[object, list[int]] = defaultdict(list)
    for line in chain.from_iterable(summary.lines for summary in ranks):
        if line.category == "parameters":
            counts[line.place].append(line.allocations)
    have_layers = any(
        len(of_line) == len(ranks) and min(of_line[0], of_line[-1]) < min(of_line[1:-1])
        for of_line in counts.values()
    )
    ends = [
        any(line.category == "parameters" and len(counts[line.place]) == 1 for line in end.lines)
        for end in (ranks[0], ranks[-1])
    ]
    return have_layers and all(ends)


def _computes_loss(summary: RankSummary) -> bool:
    return any(line.hints & Hint.LOSS and line.phase == "forward" for line in summary.lines)


def _blocks(world: int, stages: int) -> tuple[tuple[int, ...], ...]:
    """Ranks whose stage is the slowest coordinate: Megatron's, DeepSpeed's and torchtitan's."""
    width = world // stages
    return tuple(tuple(range(stage * width, (stage + 1) * width)) for stage in range(stages))


def _strides(world: int, stages: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(stage, world, stages)) for stage in range(stages))


def _cohorts_of_parameters(
    ranks: Sequence[RankSummary], groups: Sequence[_Group], *, sends: bool
) -> RankCohorts | None:
    """Cohorts of ranks that hold the same part of a model; a rank whose part no other holds joins
    the largest. None where there are fewer than two.
    """
    # What a line is for is known by the steps: it is not the same where some ranks have none.
    if len({bool(summary.step_peaks) for summary in ranks if not summary.died}) > 1:
        return None
    by_part = defaultdict(list)
    tables = PlacedTables(ranks, may_be_placed=not sends)
    copied = _copies(ranks)
    for summary in ranks:
        by_part[_part(summary, tables, copied)].append(summary)
    if _are_stages(ranks):
        stages = tuple(sorted(map(_numbers, by_part.values())))
        return RankCohorts(stages, SAME_PARAMETERS, staged=True)
    cohorts = [part for part in by_part.values() if len(part) > 1]
    if len(cohorts) < 2:
        return None
    largest = max(cohorts, key=len)
    for part in by_part.values():
        if len(part) == 1:
            largest.extend(part)
    # Of one model, only the last stage computes a loss, and the others send it what they computed;
    # else each may train a model of its own.
    losing = sum(any(map(_computes_loss, cohort)) for cohort in cohorts)
    lines = chain.from_iterable(summary.lines for summary in ranks)
    is_one_model = losing == 1 or sends or any(line.hints & Hint.POINT_TO_POINT for line in lines)
    members = tuple(sorted(map(_numbers, cohorts)))
    is_staged = is_one_model and _may_be_stages(cohorts, losing)
    if is_staged:
        members = stages_by_place(members, _numbers(ranks), groups) or members
        members = tuple(chain.from_iterable(_by_coordinate(stage, groups) for stage in members))
    return RankCohorts(members, SAME_PARAMETERS, staged=is_staged)


def _cohorts_of_replicas(ranks: Sequence[RankSummary], groups: Sequence[_Group]) -> RankCohorts:
    """All ranks; those that serve other requests apart, and those with a place in their process
    group that has work of its own.
    """
    loads = ranks_by_workload(ranks, _replicas_of_service(ranks, groups))
    present = {summary.rank: summary for summary in ranks}
    cohorts: list[tuple[int, ...]] = []
    places: list[GroupPlace] = []
    for members in loads or [_numbers(ranks)]:
        with_work = places_with_work([present[rank] for rank in members], groups)
        own = [place.members for place in with_work]
        rest = tuple(sorted(set(members).difference(*own)))
        cohorts += [*own, rest] if rest else own
        places += with_work
    larger, sizes = larger_parts(ranks, groups), by_size_of_group(ranks, groups)
    for inside in (larger, *sizes[1:]):
        cohorts = _divided_by(frozenset(inside), cohorts)
    known = ((WORKLOADS, loads), (PLACES, places), (PARTS, larger or sizes), (ALL_RANKS, True))
    source = next(source for source, is_so in known if is_so)
    in_order = tuple(sorted(cohorts))
    return RankCohorts(in_order, source, staged=False, places=tuple(places), kinds=loads)


def _may_be_stages(cohorts: Sequence[Sequence[RankSummary]], losing: int) -> bool:
    """True if one of them computes a loss at most, and none is many times as many ranks as another."""
    sizes = list(map(len, cohorts))
    return losing < 2 and max(sizes) <= _LARGER_STAGE * min(sizes)


def _divided_by(inside: Set[int], cohorts: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The cohorts, those with ranks inside a set and outside of it in two."""
    divided = [
        tuple(rank for rank in cohort if (rank in inside) == is_inside)
        for cohort in cohorts
        for is_inside in (True, False)
    ]
    return [cohort for cohort in divided if cohort]


def _replicas_of_service(
    ranks: Sequence[RankSummary], groups: Sequence[_Group]
) -> list[tuple[int, ...]]:
    """The replicas of a model that is served: process groups that have each rank in one of them,
    else single ranks.
    """
    numbers = _numbers(ranks)
    return next((tiles for _, tiles in tilings(groups, numbers)), [(rank,) for rank in numbers])


def _by_coordinate(
    members: tuple[int, ...], groups: Sequence[_Group]
) -> tuple[tuple[int, ...], ...]:
    """The ranks of a stage by their place in its groups of experts or tensors, where enough groups
    tell what is usual at each.
    """
    named = [group for group in groups if _OTHER_WORK.search(group[0])]
    for _, tiles in tilings(named, members):
        if len(tiles) >= _FEWEST_REPLICAS:
            return by_place(tiles)
    return (members,)


def _joined(numbers: Sequence[int], groups: Sequence[set[int]]) -> tuple[tuple[int, ...], ...]:
    """Ranks that share a group, directly or through others: replicas of shards are replicas of
    each other.
    """
    parent = {rank: rank for rank in numbers}

    def root(rank: int) -> int:
        while parent[rank] != rank:
            parent[rank] = parent[parent[rank]]
            rank = parent[rank]
        return rank

    for group in groups:
        first, *followers = sorted(group)
        for rank in followers:
            parent[root(rank)] = root(first)
    cohorts = defaultdict(list)
    for rank in numbers:
        cohorts[root(rank)].append(rank)
    return tuple(sorted(map(tuple, cohorts.values())))


def _part(
    summary: RankSummary, tables: PlacedTables, copied: Set[object]
) -> tuple[tuple[str, int], ...]:
    """The part of the model that a rank holds: its lines that make parameters, and how many
    tensors each makes; how many tables a rank owns does not say what it does, nor does a copy.
    """
    return tuple(
        sorted(
            (str(line.place), line.allocations)
            for line in summary.lines
            if line.category == "parameters" and not tables.has(line) and line.place not in copied
        )
    )


def _copies(ranks: Sequence[RankSummary]) -> Set[object]:
    """The lines, on half of the ranks at most, that make as many parameters as all others of a rank,
    which most ranks have, of the same or another width: copies of the weights.
    """
    parameters = [
        [line for line in summary.lines if line.category == "parameters"] for summary in ranks
    ]
    counts = Counter(line.place for lines in parameters for line in lines)
    common = {place for place, count in counts.items() if 2 * count > len(ranks)}
    copied = set()
    for lines in parameters:
        weights = [line for line in lines if line.place in common]
        number = sum(line.allocations for line in weights)
        size = sum(line.peak_bytes for line in weights)
        copied |= {
            line.place
            for line in lines
            if line.place not in common
            and line.allocations == number
            and size <= _COPY * line.peak_bytes <= _COPY * _COPY * size
        }
    return copied
