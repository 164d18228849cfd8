"""Why a line holds more, and how much of that is a rank's own: what stays, what passes, and what is
divided.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from support.summaries import MODEL, STEPS, line, named_causes, rank_of, trainers, with_lines
from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.excess.rank_against_peers import RankAgainstPeers
from vramlens.ranks.hints import Hint
from vramlens.ranks.peers.usual import Usual
from vramlens.ranks.rank_summary import LineUse
from vramlens.units import MIB


def states(count: int, alive: int, size: int = 200 * MIB) -> list[RankSummary]:
    """Trainers whose line of the optimizer makes so many states, of which so many are alive."""
    own = replace(line(11, "optimizer_state", alive, size, phase="optimizer"), allocations=count)
    own = replace(own, total_bytes=count * size)
    return [
        rank_of(rank.rank, 4, [rank.lines[0], own, *rank.lines[2:]], recomputed_bytes=0)
        for rank in trainers(4)
    ]


def test_states_of_an_optimizer_that_was_replaced_overlap() -> None:
    """All built it twice; one rank still has the first."""
    ranks = states(4, alive=2)
    ranks[2] = states(4, alive=4)[2]
    (difference,) = compare(ranks).differences
    assert (difference.ranks, difference.cause) == ((2,), "overlap")
    assert (difference.bytes, difference.place) == (400 * MIB, Place("train/model.py", 11, "f11"))


def test_what_was_built_once_more_is_no_shard() -> None:
    """One rank allocates the accumulators of its gradients anew, and keeps the old."""
    counts = (3, 3, 6, 3)
    lines = [line(90, "gradients", count, 100 * MIB) for count in counts]
    ranks = [
        with_lines(rank, replace(built, per_step=3))
        for rank, built in zip(trainers(4), lines, strict=True)
    ]
    (difference,) = compare(ranks).differences
    assert (difference.ranks, difference.cause, difference.bytes) == ((2,), "unknown", 300 * MIB)


def test_one_larger_call_is_no_larger_batch() -> None:
    """A trial of algorithms asks for one workspace that the other ranks never need."""
    ranks = []
    for rank in trainers(4):
        size = 400 * MIB if rank.rank == 1 else 4 * MIB
        trial = replace(line(91, "temporaries", 1, size, per_step=1), sizes=2)
        ranks.append(with_lines(rank, trial))
    (told,) = compare(ranks).differences
    assert (told.ranks, told.cause, told.verdict) == ((1,), "workspaces", Verdict.POSSIBLE)


def activations(scale: float = 1.0, buffers: float = 1.0, batch: float = 1.0) -> list[LineUse]:
    """The lines of a step: its batch, what layers keep, and what passes."""
    return [
        line(70, "activations", 1, int(8 * batch * MIB), per_step=1),
        line(71, "activations", 6, int(40 * scale * MIB), per_step=6),
        line(72, "activations", 6, int(30 * scale * MIB), per_step=6),
        line(73, "temporaries", 2, int(60 * buffers * MIB), per_step=2),
    ]


@pytest.mark.parametrize(
    ("odd", "cause"),
    [
        (activations(buffers=3), "workspaces"),  # what layers keep is as large as on the peers
        (activations(scale=2, buffers=2), "larger_tensors"),  # the batch itself is no larger
        (activations(scale=2), "larger_tensors"),  # autocast would make copies on the peers
        (activations(scale=2, buffers=2, batch=2), "uneven_batch"),
        (activations(scale=1.9, buffers=1.9), "uneven_batch"),
    ],
)
def test_only_what_a_batch_scales_is_a_larger_batch(odd: list[LineUse], cause: str) -> None:
    held = [odd if rank == 2 else activations() for rank in range(4)]
    weights = line(10, "parameters", 2, 100 * MIB, phase="other")
    ranks = [rank_of(rank, 4, [weights, *lines]) for rank, lines in enumerate(held)]
    (told,) = compare(ranks).differences
    assert (told.ranks, told.cause) == ((2,), cause)
    advice = " ".join((*told.evidence, told.fix))
    assert ("if balanced" in advice) == (cause == "uneven_batch")
    assert told.verdict != Verdict.PROVEN or cause == "uneven_batch"


def test_where_hardly_anything_is_kept_all_that_passes_shows_a_batch() -> None:
    """A step in parts: most lines have more bytes that pass, and only a token is an activation."""
    held = [
        [
            line(70, "activations", 1, MIB // 8, per_step=1),
            line(71, "temporaries", 6, int(40 * scale * MIB), per_step=6),
            line(72, "temporaries", 6, int(30 * scale * MIB), per_step=6),
        ]
        for scale in (1, 1, 1.3, 1)
    ]
    weights = line(10, "parameters", 2, 100 * MIB, phase="other")
    ranks = [rank_of(rank, 4, [weights, *lines]) for rank, lines in enumerate(held)]
    assert named_causes(compare(ranks)) == [((2,), "uneven_batch")]


@pytest.mark.parametrize("count", [1, 5])
def test_states_that_zero_divides_by_whole_tensors_are_shards(count: int) -> None:
    """Fewer of them, each larger; else more of them, which is no division."""
    ranks = states(3, alive=3, size=100 * MIB)
    for rank in (0, 1):
        ranks[rank] = states(count, alive=count, size=800 * MIB // count)[rank]
    cause = "uneven_shard" if count == 1 else "unknown"
    assert named_causes(compare(ranks)) == [((0, 1), cause)]


def test_states_that_are_divided_a_little_unevenly_are_so_by_nature() -> None:
    ranks = states(3, alive=3, size=100 * MIB)
    for rank in (0, 1):
        ranks[rank] = states(1, alive=1, size=400 * MIB)[rank]
    assert compare(ranks).differences == ()


def test_what_stays_until_the_peak_is_told_where_no_line_holds_more() -> None:
    ranks = trainers(4)
    cache = line(60, "activations", 1, 300 * MIB, per_step=1)
    at_peak = [0, 0, 300 * MIB, 0]
    ranks = [
        with_lines(rank, replace(cache, at_peak_bytes=size))
        for rank, size in zip(ranks, at_peak, strict=True)
    ]
    (told,) = compare(ranks).differences
    assert (told.ranks, told.cause, told.bytes) == ((2,), "overlap", 300 * MIB)
    assert told.place == cache.place


def test_what_lines_hold_for_longer_is_of_the_same_unknown_cause() -> None:
    """A teacher keeps its graph: some of its lines hold no more than their peers' at most."""
    ranks = []
    for rank in trainers(8):
        kept = rank.rank == 3
        higher = line(60, "activations", 10 if kept else 2, 50 * MIB, per_step=10)
        longer = line(61, "activations", 6, 50 * MIB, per_step=10)
        longer = replace(longer, at_peak_bytes=longer.peak_bytes if kept else 0)
        ranks.append(with_lines(rank, higher, longer))
    (told,) = compare(ranks).differences
    assert (told.ranks, told.cause, told.bytes) == ((3,), "unknown", 700 * MIB)
    assert told.place == Place(MODEL, 60, "f60")
    assert "+300.00 MiB at train/model.py:61" in told.evidence[1]


@pytest.mark.parametrize(("share", "told"), [(1.0, True), (1.06, True), (1.3, False)])
def test_as_much_that_is_held_at_once_is_no_chance(share: float, told: bool) -> None:
    """Two steps were recorded: larger batches may be chance, more of what all make is none."""
    ranks = []
    for rank in trainers(4):
        odd = rank.rank == 2
        use = line(66, "activations", 8 if odd else 2, 40 * MIB, per_step=8)
        total = int(use.total_bytes * (share if odd else 1))
        own = with_lines(rank, replace(use, total_bytes=total))
        peak = own.peak_requested_bytes
        ranks.append(replace(own, step_peaks=(peak - 9 * MIB, peak)))
    answer = compare(ranks)
    assert [difference.ranks for difference in answer.differences] == [(2,)] * told
    assert [difference.bytes for difference in answer.differences] == [240 * MIB] * told


def test_fewer_of_what_is_no_part_of_a_model_are_no_shard() -> None:
    """A rank keeps the weights of all layers as numbers, which its peers make and free."""
    ranks = []
    for rank in trainers(8):
        kept = rank.rank == 5
        alive, count = (6, 6) if kept else (1, 48)
        use = replace(line(30, "other", alive, 96 * MIB, phase="other"), allocations=count)
        ranks.append(with_lines(rank, replace(use, total_bytes=count * 96 * MIB)))
    (told,) = compare(ranks).differences
    assert (told.ranks, told.cause, told.bytes) == ((5,), "unknown", 480 * MIB)


def test_unknown_causes_of_two_lines_are_two_faults() -> None:
    ranks = trainers(8)
    for odd, number in ((1, 60), (6, 61)):
        for rank in range(8):
            alive = 8 if rank == odd else 1
            use = line(number, "activations", alive, 40 * MIB, per_step=8)
            ranks[rank] = with_lines(ranks[rank], use)
    answer = compare(ranks)
    assert named_causes(answer) == [((1,), "unknown"), ((6,), "unknown")]
    assert [told.place.line for told in answer.differences if told.place] == [60, 61]


def test_of_three_ranks_with_unequal_parts_one_leaks_and_none_is_usual() -> None:
    """Two are left without the one that leaks: the larger of them has no fault."""
    ranks = [
        with_lines(rank, line(31, "parameters", 1, size * MIB, phase="other"))
        for rank, size in zip(trainers(3), (1400, 1200, 1000), strict=True)
    ]
    ranks[1] = with_lines(ranks[1], line(61, "other", 6, 60 * MIB, per_step=1))
    assert [told.ranks for told in compare(ranks).differences] == [(1,)]


def test_a_workspace_is_no_embedding_table() -> None:
    ranks = trainers(4)
    sizes = [30 * MIB, 200 * MIB, 30 * MIB, 30 * MIB]
    ranks = [
        with_lines(rank, line(60, "workspace", 1, size))
        for rank, size in zip(ranks, sizes, strict=True)
    ]
    assert named_causes(compare(ranks)) == [((1,), "unknown")]


@pytest.mark.parametrize(("size", "cause"), [(55, "larger_tensors"), (33, "uneven_shard")])
def test_a_table_that_is_no_parameter_is_told_at_its_line(size: int, cause: str) -> None:
    """By a quarter larger it is no shard that was rounded up."""
    sizes = [30 * MIB, size * MIB, 30 * MIB, 30 * MIB]
    ranks = [
        with_lines(rank, *(line(number, "other", 10, size, phase="other") for number in (60, 61)))
        for rank, size in zip(trainers(4), sizes, strict=True)
    ]
    (told,) = compare(ranks).differences
    assert (told.ranks, told.cause, told.bytes) == ((1,), cause, 20 * (size - 30) * MIB)
    assert told.place is not None
    assert told.place.line == 60


def with_peak(rank: RankSummary, peak: int) -> RankSummary:
    peaks = dict.fromkeys(("requested", "allocated", "reserved"), peak)
    return replace(rank, **{f"peak_{kind}_bytes": size for kind, size in peaks.items()})


def test_what_peers_give_back_at_once_is_all_the_rank_s_own() -> None:
    """All gather one parameter after the other; the first rank keeps them."""
    ranks = []
    for rank in trainers(4):
        gathered = line(70, "other", 1, 300 * MIB, hints=Hint.STATE_DICT)
        gathered = replace(gathered, at_peak_bytes=0, allocations=3, total_bytes=900 * MIB)
        if rank.rank == 0:
            gathered = replace(gathered, peak_bytes=900 * MIB, at_peak_bytes=900 * MIB)
        ranks.append(with_lines(rank, gathered))
    (difference,) = compare(ranks).differences
    assert (difference.ranks, difference.cause) == ((0,), "full_state_dict")
    assert difference.bytes == 900 * MIB


@pytest.mark.parametrize("stays", [False, True])
def test_what_passes_holds_no_more_than_the_peak_is_higher(stays: bool) -> None:
    """An evaluation has its peak where activations are gone."""
    ranks = trainers(4)
    alone = line(71, "other", 1, 900 * MIB, per_step=0 if stays else 1)
    peak = ranks[0].peak_requested_bytes + 300 * MIB
    ranks[0] = with_peak(with_lines(ranks[0], alone), peak)
    (difference,) = compare(ranks).differences
    assert (difference.ranks, difference.cause) == ((0,), "rank_only")
    assert difference.bytes == (900 if stays else 300) * MIB


@pytest.mark.parametrize(
    ("allocations", "alive", "cause"),
    [
        pytest.param(4 * STEPS, 4, "rank0_gather", id="each step"),
        pytest.param(4 * STEPS // 2, 4, "rank_only", id="every other step"),
        pytest.param(4 * STEPS // 2, 4 * STEPS // 2, "rank0_gather", id="kept"),
    ],
)
def test_equal_tensors_of_some_steps_are_gathered_where_they_stay(
    allocations: int, alive: int, cause: str
) -> None:
    ranks = trainers(4)
    parts = line(72, "other", alive, 50 * MIB, per_step=4)
    parts = replace(parts, allocations=allocations, total_bytes=allocations * 50 * MIB)
    ranks[0] = with_lines(ranks[0], parts)
    assert named_causes(compare(ranks)) == [((0,), cause)]


@pytest.mark.parametrize(
    ("more", "told"),
    [(500, "; this explains 320.00 MiB of the 500.00 MiB more"), (320, ""), (224, ""), (-8, "")],
    ids=["another cause", "all of it", "the peers peak elsewhere", "the peers have more"],
)
def test_a_cause_explains_a_part_of_the_difference_or_all_of_it(more: int, told: str) -> None:
    """DDP's second set of buckets was the peers' peak: a leak explained 320 of 224 MiB."""
    beside: Any = SimpleNamespace(more=more * MIB, peaks="peaks")
    assert RankAgainstPeers.part_of_peak(beside, 320 * MIB) == f"peaks{told}"


def test_what_half_of_the_ranks_hold_is_not_usual_for_another_one() -> None:
    """Half have a debugger's buffer, and one of the other half keeps its graph: most peaks are
    higher, but for two reasons.
    """
    ranks = trainers(8)
    buffer = line(60, "other", 1, 300 * MIB, per_step=1)
    for at in range(4, 8):
        ranks[at] = with_lines(ranks[at], buffer)
    graph = line(61, "activations", 8, 100 * MIB, per_step=8)
    ranks[1] = with_lines(ranks[1], graph)
    answer = compare(ranks)
    assert named_causes(answer) == [((1,), "rank_only"), ((4, 5, 6, 7), "rank_only")]
    assert [told.bytes for told in answer.differences] == [800 * MIB, 300 * MIB]


def test_what_more_than_half_of_the_ranks_hold_is_usual() -> None:
    ranks = trainers(8)
    for at in range(3, 8):
        ranks[at] = with_lines(ranks[at], line(60, "other", 1, 300 * MIB, per_step=1))
    assert compare(ranks).differences == ()
    ranks[1] = with_lines(ranks[1], line(61, "activations", 8, 100 * MIB, per_step=8))
    (told,) = compare(ranks).differences
    assert (told.ranks, told.bytes) == ((1,), 500 * MIB)


def test_few_ranks_that_do_not_differ_say_nothing_of_what_is_usual() -> None:
    sizes = (100, 100, 300, 300, 300, 300, 300, 300, 300, 300)
    ranks = [with_peak(rank, size * MIB) for rank, size in zip(trainers(10), sizes, strict=True)]
    usual = Usual(ranks)
    assert usual.peak_bytes == 300 * MIB
    assert usual.without(frozenset()) is None
    assert usual.without(frozenset(range(2))) is None
    assert usual.without(frozenset(range(2, 10))) is None
    others = usual.without(frozenset(range(4, 10)))
    assert others is not None
    assert (others.peak_bytes, others.spread_bytes, others.ranks) == (100 * MIB, 0, ranks)
