"""Places in process groups: what all ranks at one place do is their work, and parts that are uneven
by place are the layout's; a fault beside them is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from support.summaries import (
    MICROBATCHES,
    embedding,
    head,
    layers,
    line,
    named_causes,
    rank_of,
    trainers,
    with_lines,
)
from vramlens.analyses.finding import Place
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.hints import Hint
from vramlens.ranks.peers.group_places import tilings
from vramlens.ranks.peers.rank_cohorts import PLACES, cohorts_of
from vramlens.ranks.rank_summary import LineUse
from vramlens.units import MIB

RING = (1.0, 0.92, 0.84, 0.76)
"""Parts of a sequence."""


def in_tiles(ranks: Sequence[RankSummary], size: int, name: str) -> list[RankSummary]:
    """Ranks in groups of so many, one after the other."""
    return [
        replace(rank, groups=(*rank.groups, (name, ((rank.rank // size * size, size, 1),))))
        for rank in ranks
    ]


def beside(rank: RankSummary, *lines: LineUse) -> RankSummary:
    return replace(with_lines(rank, *lines), groups=rank.groups)


def sampler(hints: Hint = Hint.NONE) -> LineUse:
    place = Place("serve/sampler.py", 29, "sample")
    return replace(line(29, "temporaries", 1, 300 * MIB, per_step=1, hints=hints), place=place)


def servers(at: int, hints: Hint = Hint.NONE) -> list[RankSummary]:
    """Three tensor-parallel groups of four; a rank of each samples."""
    ranks = in_tiles(trainers(12), 4, "tensor_parallel")
    return [beside(rank, sampler(hints)) if rank.rank % 4 == at else rank for rank in ranks]


@pytest.mark.parametrize(("at", "word"), [(0, "first"), (3, "last")])
def test_what_the_first_or_last_of_each_group_does_is_its_work(at: int, word: str) -> None:
    answer = compare(servers(at))
    samplers = tuple(range(at, 12, 4))
    assert answer.differences == ()
    assert answer.cohorts.source == PLACES
    assert samplers in answer.cohorts.members
    ranks = ", ".join(map(str, samplers[:2]))
    assert answer.notes[0] == (
        f"ranks {ranks} and {samplers[2]}, each the {word} rank of its group tensor_parallel, do work"
        " that no other rank does: 300.00 MiB, most of it at serve/sampler.py:29 in sample; they are"
        " compared with each other"
    )


def test_another_place_or_two_of_three_groups_do_it_for_no_such_reason() -> None:
    assert named_causes(compare(servers(1))) == [((1, 5, 9), "rank_only")]
    ranks = servers(0)
    ranks[8] = in_tiles(trainers(12), 4, "tensor_parallel")[8]
    assert named_causes(compare(ranks)) == [((0, 4), "rank_only")]


def test_what_a_call_gives_away_is_told_of_all_first_ranks() -> None:
    assert named_causes(compare(servers(0, Hint.STATE_DICT))) == [((0, 4, 8), "full_state_dict")]


def test_a_fault_of_one_sampler_is_told_beside_the_others() -> None:
    ranks = servers(0)
    ranks[4] = beside(ranks[4], line(50, "other", 1, 400 * MIB))
    assert named_causes(compare(ranks)) == [((4,), "rank_only")]


def ring(rings: int, parts: Sequence[float] = RING) -> list[RankSummary]:
    """Context-parallel rings whose ranks have parts of other lengths."""
    return in_tiles(
        [
            rank_of(rank, rings * len(parts), of_part(parts[rank % len(parts)]), recomputed_bytes=0)
            for rank in range(rings * len(parts))
        ],
        len(parts),
        "context_ring",
    )


def of_part(part: float) -> list[LineUse]:
    return [
        *layers(2, 2)[:2],
        line(12, "activations", 4, int(400 * part) * MIB, per_step=2 * MICROBATCHES),
    ]


@pytest.mark.parametrize("rings", [2, 4])
def test_ranks_with_equal_parts_are_compared(rings: int) -> None:
    """The odd rank holds less than the first of its ring, and more than all with its part."""
    ranks = ring(rings)
    assert cohorts_of(ranks, {}).members == tuple(tuple(range(at, 4 * rings, 4)) for at in range(4))
    assert compare(ranks).differences == ()
    ranks[6] = beside(ranks[6], line(44, "activations", 2, 60 * MIB, per_step=2))
    assert named_causes(compare(ranks)) == [((6,), "rank_only")]


def test_one_place_that_holds_more_is_no_uneven_part() -> None:
    """In each of the rings the same rank is odd: others are alike."""
    ranks = ring(4, (1.0, 1.0, 1.4, 1.0))
    assert cohorts_of(ranks, {}).members != tuple(tuple(range(at, 16, 4)) for at in range(4))
    assert named_causes(compare(ranks)) == [((2, 6, 10, 14), "uneven_batch")]


def of_heads(heads: int) -> list[LineUse]:
    """What a tensor-parallel rank holds that has so many heads of attention."""
    return [
        *layers(2, 2)[:2],
        line(15, "parameters", 2, 8 * heads * MIB, phase="other"),
        line(16, "activations", 4, 100 * heads * MIB, per_step=2 * MICROBATCHES),
    ]


def attending(heads: Sequence[int], replicas: int = 2) -> list[RankSummary]:
    ranks = [
        rank_of(rank, replicas * len(heads), of_heads(heads[rank % len(heads)]), recomputed_bytes=0)
        for rank in range(replicas * len(heads))
    ]
    return in_tiles(ranks, len(heads), "shards")


def test_ranks_with_one_head_more_are_compared_with_each_other() -> None:
    ranks = attending((2, 2, 1, 1))
    answer = compare(ranks)
    assert answer.cohorts.members == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert answer.differences == ()
    assert answer.notes[0] == (
        "the ranks do 2 kinds of work, told by the sizes of their parts (ranks 0-1 and 4-5; ranks 2-3"
        " and 6-7): one kind may hold more than another"
    )
    ranks[6] = beside(ranks[6], line(44, "other", 1, 60 * MIB))
    assert named_causes(compare(ranks)) == [((6,), "rank_only")]


@pytest.mark.parametrize("heads", [(1, 1, 2, 1), (3, 1, 1, 1), (2, 1)])
def test_other_parts_are_no_division(heads: Sequence[int]) -> None:
    """PyTorch gives what is left over to the first ranks; three times as much, or one of two, may
    not have been divided at all.
    """
    assert len(cohorts_of(attending(heads), {}).members) == 1


def test_parts_that_differ_between_replicas_are_no_division() -> None:
    ranks = attending((2, 2, 1, 1))
    ranks[1] = in_tiles(attending((1, 1, 1, 1)), 4, "shards")[1]
    assert len(cohorts_of(ranks, {}).members) == 1


def chains(replicas: int = 3) -> list[RankSummary]:
    """Pipelines of four stages, whose groups have a name of their own: the two in the middle hold
    the same parameters, and the first of them more microbatches.
    """
    ranks = []
    for rank in range(4 * replicas):
        stage = rank // replicas
        own = [*layers(2, 4 - stage), *{0: embedding(), 3: head()}.get(stage, [])]
        members = ((rank % replicas, 4, replicas),)
        summary = rank_of(rank, 4 * replicas, own, recomputed_bytes=0)
        ranks.append(replace(summary, groups=(("stage_chain", members),)))
    return ranks


def test_stages_in_the_middle_are_told_apart_by_their_pipelines() -> None:
    answer = compare(chains())
    assert answer.cohorts.members == ((0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11))
    assert answer.cohorts.staged
    assert answer.differences == ()
    ranks = chains()
    for odd in (1, 4, 7, 10):  # one pipeline's microbatches are larger
        grown = [
            replace(use, peak_bytes=2 * use.peak_bytes, at_peak_bytes=2 * use.at_peak_bytes,
                    total_bytes=2 * use.total_bytes)
            if use.category == "activations" else use
            for use in ranks[odd].lines
        ]  # fmt: skip
        larger = rank_of(odd, 12, grown, recomputed_bytes=0)
        ranks[odd] = replace(larger, groups=ranks[odd].groups)
    (told,) = compare(ranks).differences
    assert (told.ranks, told.cause) == ((1, 4, 7, 10), "uneven_batch")
    assert told.evidence[0].startswith("these are all the ranks of group stage_chain")


def test_experts_that_are_popular_on_every_replica_are_no_difference() -> None:
    """Three replicas of a stage of two experts' ranks; the first expert gets more tokens."""
    ranks = []
    for rank in range(24):
        stage, expert = rank % 8 // 2, rank % 2
        own = [
            *layers(2, 4 - stage),
            *{0: embedding(), 3: head()}.get(stage, []),
            line(40, "activations", 2, (120 - 60 * expert) * MIB, per_step=2),
        ]
        chain, pair = rank // 8 * 8 + expert, rank // 2 * 2
        groups = (("stage_chain", ((chain, 4, 2),)), ("expert_group", ((pair, 2, 1),)))
        ranks.append(replace(rank_of(rank, 24, own, recomputed_bytes=0), groups=groups))
    answer = compare(ranks)
    assert (0, 8, 16) in answer.cohorts.members
    assert answer.differences == ()


def test_groups_that_leave_a_rank_out_tile_nothing() -> None:
    groups = [("tp", (0, 1)), ("tp", (2, 3)), ("dp", (0, 2)), ("dp", (1,)), ("all", (0, 1, 2, 3))]
    assert [name for name, _ in tilings(groups, range(4))] == ["tp"]
    assert list(tilings(groups, range(5))) == []
    assert [tiles for _, tiles in tilings([*groups, *groups], range(4))] == [[(0, 1), (2, 3)]]


def with_group(
    ranks: Sequence[RankSummary], name: str, members: Sequence[int]
) -> list[RankSummary]:
    spans = tuple((rank, 1, 1) for rank in members)
    return [
        replace(rank, groups=(*rank.groups, (name, spans))) if rank.rank in members else rank
        for rank in ranks
    ]


def test_what_the_only_group_of_its_name_does_is_its_work() -> None:
    """The leaders of islands hold the outer optimizer."""
    leaders = (0, 6, 10)
    ranks = trainers(12)
    for island in (range(6), range(6, 10), range(10, 12)):
        ranks = with_group(ranks, "island", island)
    led = with_group(ranks, "leaders", leaders)
    answer = compare([beside(rank, sampler()) if rank.rank in leaders else rank for rank in led])
    assert answer.differences == ()
    assert answer.notes[0].startswith(
        "ranks 0, 6 and 10, the ranks of group leaders, do work that no other rank does: 300.00 MiB"
    )
    grouped = with_group(ranks, "some", (0, 1, 2))
    odd = [beside(rank, sampler()) if rank.rank < 3 else rank for rank in grouped]
    assert named_causes(compare(odd)) == [((0, 1, 2), "rank_only")]


def of_domains(sizes: Sequence[int]) -> list[RankSummary]:
    """Ranks in domains of so many, over which each divides its states."""
    ranks: list[RankSummary] = []
    for size in sizes:
        members = range(len(ranks), len(ranks) + size)
        states = line(11, "optimizer_state", 1, 1200 * MIB // size, phase="optimizer")
        own = [layers(2, 2)[0], states, *layers(2, 2)[2:]]
        ranks += [
            replace(
                rank_of(rank, sum(sizes), own, recomputed_bytes=0),
                groups=(("domain", ((members[0], size, 1),)),),
            )
            for rank in members
        ]
    return ranks


def test_shards_of_groups_of_other_sizes_are_not_compared() -> None:
    ranks = of_domains((4, 3, 3, 2))
    answer = compare(ranks)
    assert answer.cohorts.members == ((0, 1, 2, 3), (4, 5, 6, 7, 8, 9), (10, 11))
    assert answer.differences == ()
    ranks[5] = beside(ranks[5], line(44, "other", 1, 300 * MIB))
    assert named_causes(compare(ranks)) == [((5,), "rank_only")]
    assert len(cohorts_of(of_domains((4, 4, 4)), {}).members) == 1
