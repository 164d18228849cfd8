"""Stages of a pipeline, roles and layers: what is by the layout is no fault, and faults beside it
are told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from support.summaries import (
    MICROBATCHES,
    MODEL,
    STEPS,
    embedding,
    head,
    layers,
    line,
    named_causes,
    pipeline,
    rank_of,
    trainers,
    with_lines,
)
from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import LineUse, RankGrowth
from vramlens.units import GIB, MIB


def test_embedding_head_and_microbatches_in_flight_are_no_fault() -> None:
    answer = compare(pipeline())
    assert answer.cohorts is not None
    assert answer.cohorts.members == ((0,), (1,), (2,), (3,))
    assert answer.differences == ()
    (note,) = [note for note in answer.notes if "by the layout of the pipeline" in note]
    assert note.startswith("rank 3 holds ")


def test_the_layout_is_told_where_memory_is_short() -> None:
    ranks = pipeline()
    peak = ranks[3].peak_requested_bytes
    ranks[3] = replace(ranks[3], total_bytes=peak + 100 * MIB)
    assert named_causes(compare(ranks)) == [((3,), "first_last_stage")]


def test_a_stage_of_more_layers_is_told() -> None:
    assert named_causes(compare(pipeline(counts=(2, 6, 2, 2)))) == [((1,), "pipeline_stage")]


@pytest.mark.parametrize("stage", [1, 3, 5])
def test_a_stage_of_half_as_many_layers_more_has_the_bytes_of_these(stage: int) -> None:
    """Also where it holds little more than the usual stage, which waits for more microbatches."""
    counts = [2] * 8
    counts[stage] = 3
    (told,) = compare(pipeline(8, counts)).differences
    assert (told.cause, told.ranks) == ("pipeline_stage", (stage,))
    equal = pipeline(8, [2] * 8)[stage].peak_requested_bytes
    more = pipeline(8, counts)[stage].peak_requested_bytes - equal
    assert told.bytes == pytest.approx(more, rel=0.1)
    assert told.evidence[0] == "1.50 times as many layers as the usual stage"


def test_a_stage_that_has_more_layers_and_holds_less_is_no_fault() -> None:
    """The last stages wait for fewer microbatches: who gives them more layers balances memory."""
    assert compare(pipeline(8, [4, 4, 4, 4, 4, 4, 5, 4])).differences == ()


def test_a_stage_that_has_more_layers_and_holds_hardly_more_is_no_fault() -> None:
    ranks = pipeline(8, [4, 4, 4, 4, 4, 4, 5, 4])
    usual = sorted(rank.peak_requested_bytes for rank in ranks)[3]
    ranks[6] = replace(ranks[6], peak_requested_bytes=usual + 2 * MIB)
    assert compare(ranks).differences == ()


def test_tied_embeddings_are_of_both_ends() -> None:
    ranks = pipeline()
    ranks[3] = with_lines(ranks[3], embedding()[0])
    assert compare(ranks).differences == ()


@pytest.mark.parametrize("stages", [4, 8])
def test_one_tensor_a_microbatch_was_not_gathered(stages: int) -> None:
    """A tower of images on the first stage makes as many tensors a step as there are ranks."""
    ranks = pipeline(stages, (2,) * stages)
    tower = line(40, "activations", stages, 30 * MIB, per_step=MICROBATCHES)
    ranks[0] = with_lines(ranks[0], tower)
    assert compare(ranks).differences == ()


def test_what_was_gathered_and_outlives_its_step_is_told() -> None:
    ranks = pipeline()
    gathered = line(41, "other", 4 * STEPS, 30 * MIB, per_step=4)
    ranks[0] = with_lines(ranks[0], gathered)
    assert named_causes(compare(ranks)) == [((0,), "rank0_gather")]


def test_a_buffer_of_one_stage_in_the_middle_is_told_with_its_line() -> None:
    ranks = pipeline()
    ranks[1] = with_lines(ranks[1], line(50, "other", 1, 600 * MIB, phase="other"))
    (difference,) = compare(ranks).differences
    assert (difference.ranks, difference.cause) == ((1,), "rank_only")
    assert difference.bytes == 600 * MIB
    assert difference.place == Place(MODEL, 50, "f50")


def test_the_grads_that_one_stage_receives_are_its_work() -> None:
    """Beside frozen stages, which receive none, and the last one, where they begin."""
    ranks = pipeline()
    ranks[2] = with_lines(ranks[2], line(51, "gradients", 1, 200 * MIB, per_step=MICROBATCHES))
    received = line(52, "temporaries", 1, 200 * MIB, per_step=MICROBATCHES, phase="backward")
    ranks[1] = with_lines(ranks[1], received)
    assert compare(ranks).differences == ()


@pytest.mark.parametrize("stage", [0, 3])
def test_a_buffer_of_an_end_is_no_embedding_and_no_head(stage: int) -> None:
    ranks = pipeline()
    ranks[stage] = with_lines(ranks[stage], line(50, "other", 1, 600 * MIB, phase="other"))
    (difference,) = compare(ranks).differences
    assert (difference.ranks, difference.cause) == ((stage,), "rank_only")
    assert (difference.bytes, difference.place) == (600 * MIB, Place(MODEL, 50, "f50"))


def frozen_pipeline() -> list[RankSummary]:
    """Four stages; the first two only run forward passes and keep nothing."""
    frozen = [
        line(10, "parameters", 2, 100 * MIB, phase="other"),
        line(12, "temporaries", 1, 50 * MIB, per_step=2 * MICROBATCHES),
    ]
    _first, second, *trained = pipeline()
    start = rank_of(0, 4, [*frozen, embedding()[0]])
    return [start, replace(second, lines=tuple(frozen), peak_requested_bytes=250 * MIB), *trained]


def test_stages_that_train_are_not_compared_with_frozen_ones() -> None:
    ranks = frozen_pipeline()
    answer = compare(ranks)
    assert answer.cohorts is not None
    assert answer.cohorts.members == ((0,), (1,), (2,), (3,))
    assert answer.differences == ()
    for stage in range(4):
        odd = with_lines(ranks[stage], line(50, "other", 1, 600 * MIB, phase="other"))
        changed = [*ranks[:stage], odd, *ranks[stage + 1 :]]
        assert named_causes(compare(changed)) == [((stage,), "rank_only")]


def test_the_only_stage_that_trains_is_no_pipeline() -> None:
    """A teacher runs forward passes, a student trains: both by themselves."""
    answer = compare([frozen_pipeline()[1], replace(frozen_pipeline()[3], rank=2)])
    assert answer.cohorts is None or not answer.cohorts.staged
    assert answer.differences == ()


def encoder_and_decoder(
    counts: Sequence[int], kept: Sequence[int] | None = None
) -> list[RankSummary]:
    """As many stages of an encoder as of a decoder; where it is given how many times a layer's
    activations are kept, they are computed again, unless that is more than once.
    """
    stages = len(counts)
    ranks = []
    for stage, count in enumerate(counts):
        times = 1 if kept is None else kept[stage]
        lines = layers(count, (stages - stage) * times)
        if 2 * stage >= stages:
            moved = [
                replace(one, place=Place("train/decoder.py", number, "f"))
                for number, one in enumerate(lines[::2], 7)
            ]
            lines = [moved[0], lines[1], moved[1], lines[3]]
        ends = {0: embedding(), stages - 1: head()}
        recomputed = None if kept is None else GIB * (times == 1)
        lines = [*lines, *ends.get(stage, [])]
        ranks.append(rank_of(stage, stages, lines, recomputed_bytes=recomputed))
    return ranks


def test_more_layers_than_the_other_stage_of_an_encoder_are_told() -> None:
    assert compare(encoder_and_decoder((2, 2, 2, 2))).differences == ()
    assert named_causes(compare(encoder_and_decoder((4, 2, 2, 2)))) == [((0,), "pipeline_stage")]


@pytest.mark.parametrize("odd", [1, 4])
def test_a_stage_of_an_encoder_or_decoder_that_keeps_its_activations_is_told(odd: int) -> None:
    """Beside the stages with the same layers; the others have no such lines."""
    counts = (2,) * 6
    assert compare(encoder_and_decoder(counts, (1,) * 6)).differences == ()
    kept = [5 if stage == odd else 1 for stage in range(6)]
    (difference,) = compare(encoder_and_decoder(counts, kept)).differences
    assert (difference.ranks, difference.cause) == ((odd,), "not_checkpointed")
    assert difference.title.endswith("more than a stage with the same layers")


def test_of_two_stages_both_are_an_end() -> None:
    """The head of the last one does not hide layers: the first one has an embedding."""
    assert compare(pipeline(2, (2, 2))).differences == ()
    assert named_causes(compare(pipeline(2, (2, 4)))) == [((1,), "pipeline_stage")]


def test_a_stage_that_keeps_its_activations_is_told() -> None:
    ranks = [replace(rank, recomputed_bytes=rank.lines[2].total_bytes) for rank in pipeline()]
    kept = line(14, "activations", 2 * 3, 200 * MIB, per_step=2 * MICROBATCHES)
    once = replace(kept, peak_bytes=200 * MIB, at_peak_bytes=200 * MIB)
    ranks = [
        replace(with_lines(rank, kept if rank.rank == 1 else once), recomputed_bytes=recomputed)
        for rank, recomputed in zip(ranks, (rank.recomputed_bytes for rank in ranks), strict=True)
    ]
    ranks[1] = replace(ranks[1], recomputed_bytes=0)
    assert ((1,), "not_checkpointed") in named_causes(compare(ranks))
    unknown = [replace(rank, recomputed_bytes=None) for rank in ranks]
    assert "not_checkpointed" not in {cause for _, cause in named_causes(compare(unknown))}


@pytest.mark.parametrize(
    ("keepers", "told"),
    [
        ((2, 3), []),
        ((3,), [((3,), "not_checkpointed")]),
        ((2,), [((2,), "not_checkpointed")]),
    ],
)
def test_the_last_stages_may_be_meant_to_keep_their_activations(
    keepers: tuple[int, ...], told: list[tuple[tuple[int, ...], str]]
) -> None:
    """Fewer microbatches are in flight there. The last one alone may have been forgotten."""
    kept = line(14, "activations", 2 * 3, 200 * MIB, per_step=2 * MICROBATCHES)
    once = replace(kept, peak_bytes=200 * MIB, at_peak_bytes=200 * MIB)
    ranks = [
        replace(
            with_lines(rank, kept if rank.rank in keepers else once),
            recomputed_bytes=0 if rank.rank in keepers else rank.lines[2].total_bytes,
        )
        for rank in pipeline()
    ]
    answer = compare(ranks)
    causes = [cause for cause in named_causes(answer) if cause[1] == "not_checkpointed"]
    assert causes == told
    if not told:
        assert answer.differences == ()
        assert answer.notes[0] == (
            "ranks 2-3 keep activations that earlier stages compute again: fewer microbatches are in"
            " flight there, so it may be meant"
        )


def test_stages_that_keep_their_activations_may_have_more_layers() -> None:
    kept = line(14, "activations", 2 * 3, 200 * MIB, per_step=2 * MICROBATCHES)
    once = replace(kept, peak_bytes=200 * MIB, at_peak_bytes=200 * MIB)
    ranks = [
        replace(
            with_lines(rank, kept if rank.rank > 1 else once),
            recomputed_bytes=0 if rank.rank > 1 else rank.lines[2].total_bytes,
        )
        for rank in pipeline(4, (2, 2, 8, 2))
    ]
    assert named_causes(compare(ranks)) == [((2,), "pipeline_stage")]


def test_a_rank_that_does_not_checkpoint_is_told() -> None:
    ranks = [replace(rank, recomputed_bytes=2 * GIB) for rank in trainers(4)]
    ranks[2] = rank_of(2, 4, layers(2, 6), recomputed_bytes=0)
    assert named_causes(compare(ranks)) == [((2,), "not_checkpointed")]


def named_groups(ranks: Sequence[RankSummary]) -> list[RankSummary]:
    groups = (("mesh_dp", ((0, len(ranks), 1),)),)
    return [replace(rank, groups=groups) for rank in ranks]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(layers(2, 6), id="activations"),
        pytest.param(
            [*layers(2, 2)[:1], line(11, "optimizer_state", 12, 200 * MIB), *layers(2, 2)[2:]],
            id="optimizer state",
        ),
    ],
)
def test_replicas_have_no_stages_and_no_tables(odd: list[LineUse]) -> None:
    """More of what peers by name have as well is neither more layers nor a larger table."""
    ranks = named_groups([*trainers(3), rank_of(3, 4, odd, recomputed_bytes=0)])
    (difference,) = compare(ranks).differences
    assert difference.ranks == (3,)
    assert difference.cause not in {"pipeline_stage", "embedding_shard", "uneven_shard"}


def test_parameters_without_activations_are_no_layers() -> None:
    more = [line(10, "parameters", 9, 100 * MIB, phase="other"), *layers(2, 2)[1:]]
    ranks = [*trainers(3), rank_of(3, 4, more, recomputed_bytes=0)]
    assert named_causes(compare(ranks)) == [((3,), "unknown")]


def generators(first: int, count: int, world: int) -> list[RankSummary]:
    lines = [
        line(10, "parameters", 2, 100 * MIB, phase="other"),
        line(60, "other", 1, 3 * GIB, phase="other"),
        line(61, "activations", 1, 20 * MIB, per_step=40),
    ]
    return [rank_of(rank, world, lines) for rank in range(first, first + count)]


def test_who_trains_is_not_compared_with_who_generates() -> None:
    ranks = [*trainers(4), *generators(4, 4, 8)]
    answer = compare(ranks)
    assert answer.cohorts is not None
    assert answer.cohorts.members == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert answer.differences == ()
    ranks[2] = with_lines(ranks[2], line(70, "other", 1, 400 * MIB, phase="other"))
    assert named_causes(compare(ranks)) == [((2,), "rank_only")]


def test_roles_are_told_apart_within_a_group_of_all() -> None:
    ranks = named_groups([*trainers(4), *generators(4, 4, 8)])
    answer = compare(ranks)
    assert answer.cohorts is not None
    assert answer.cohorts.members == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert answer.differences == ()
    # One that never came to train is still one of its group.
    alone = compare([*ranks[:4], replace(ranks[4], groups=ranks[0].groups)])
    assert alone.cohorts is not None
    assert alone.cohorts.members == ((0, 1, 2, 3, 4),)


def test_two_models_that_train_are_no_stages_of_one() -> None:
    """An actor and a critic of half its size: neither sends what it computed to the other."""
    actor, critic = layers(4, 2), layers(2, 2)
    ranks = [rank_of(number, 6, actor if number < 3 else critic) for number in range(6)]
    assert compare(ranks).differences == ()
    received = line(15, "activations", 1, MIB, per_step=8, hints=Hint.POINT_TO_POINT)
    sending = [with_lines(rank, received) for rank in ranks]
    assert named_causes(compare(sending)) == [((0, 1, 2), "pipeline_stage")]


def test_two_ranks_that_do_not_train_may_do_different_work() -> None:
    """A generator with its cache, and a reward model."""
    generator, judge = generators(4, 2, 6)
    judge = rank_of(5, 6, [judge.lines[0], judge.lines[2]])
    assert compare([*trainers(4), generator, judge]).differences == ()
    kept = with_lines(judge, line(80, "other", STEPS, 60 * MIB, per_step=1))
    (leak,) = compare([*trainers(4), generator, kept]).differences
    assert (leak.ranks, leak.cause, leak.bytes) == ((5,), "leak", STEPS * 60 * MIB)


def test_the_only_rank_of_a_role_is_looked_at_for_leaks() -> None:
    (encoder,) = generators(4, 1, 5)
    assert compare([*trainers(4), encoder]).differences == ()
    leaking = replace(encoder, leaks=(growth(80, 60 * MIB),))
    assert named_causes(compare([*trainers(4), leaking])) == [((4,), "leak")]


def growth(number: int, bytes_per_step: int) -> RankGrowth:
    place = Place(MODEL, number, f"f{number}")
    return RankGrowth(Verdict.PROVEN, place, bytes_per_step, bytes_per_step * STEPS, STEPS, "drop")


def test_two_leaks_of_a_rank_are_both_told() -> None:
    ranks = trainers(4)
    kept = [line(number, "other", STEPS, 60 * MIB, per_step=1) for number in (80, 81)]
    grown = (growth(80, 60 * MIB), growth(81, 60 * MIB))
    ranks[1] = replace(with_lines(ranks[1], *kept), leaks=grown)
    leaks = compare(ranks).differences
    assert [(leak.cause, leak.place and leak.place.line) for leak in leaks] == [
        ("leak", 80),
        ("leak", 81),
    ]


@pytest.mark.parametrize(("gap", "causes"), [(1.5, ["rank_only"]), (4, ["rank_only", "allocator"])])
def test_reserved_memory_follows_from_a_line_unless_it_is_far_more(
    gap: float, causes: list[str]
) -> None:
    ranks = trainers(4)
    odd = with_lines(ranks[1], line(90, "other", 1, 500 * MIB, phase="other"))
    reserved = odd.peak_allocated_bytes + int(gap * 500 * MIB)
    ranks[1] = replace(odd, peak_reserved_bytes=reserved)
    assert [difference.cause for difference in compare(ranks).differences] == causes


def test_models_with_losses_of_their_own_are_no_stages() -> None:
    """An actor and a critic of half the size, on two ranks each."""
    loss = line(31, "activations", 1, 100 * MIB, per_step=1, hints=Hint.LOSS)
    actors = [rank_of(rank, 4, [*layers(4, 2), loss], recomputed_bytes=0) for rank in (0, 1)]
    critics = [rank_of(rank, 4, [*layers(2, 2), loss], recomputed_bytes=0) for rank in (2, 3)]
    answer = compare([*actors, *critics])
    assert answer.cohorts is not None
    assert answer.cohorts.members == ((0, 1), (2, 3))
    assert answer.differences == ()


def test_optimizer_states_that_zero_divides_are_shards() -> None:
    """Whole tensors of a model, and a large one of them on one rank: by nature, as long as there is
    room for it.
    """
    ranks = [
        rank_of(
            rank,
            4,
            [*layers(2, 2)[:1], line(11, "optimizer_state", count, size), *layers(2, 2)[2:]],
        )
        for rank, (count, size) in enumerate(
            ((9, 50 * MIB), (8, 50 * MIB), (7, 50 * MIB), (3, 300 * MIB))
        )
    ]
    answer = compare(named_groups(ranks))
    assert answer.differences == ()
    assert answer.notes[0].startswith("each rank has optimizer states of its own")
    short = [replace(rank, total_bytes=ranks[3].peak_reserved_bytes) for rank in ranks]
    assert named_causes(compare(named_groups(short))) == [((3,), "uneven_shard")]
