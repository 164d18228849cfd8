"""A rank that trains what its peers keep frozen is told so; ranks that have, or train, other parameters
by design are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from support.summaries import line, named_causes, rank_of
from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks import RankSummary, compare
from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import LineUse, ParameterGroup, RankGrowth
from vramlens.units import MIB

ENCODER = ParameterGroup("encoder.layers.{0-11}.mlp", "frozen", 24, 400 * MIB, 1001)
EMBEDDING = ParameterGroup("encoder.tokens", "frozen", 1, 40 * MIB, 1002)
HEAD = ParameterGroup("head.{0-2}", "stepped", 6, 20 * MIB, 1003)
FROZEN = (ENCODER, EMBEDDING, HEAD)
TRAINED = (replace(ENCODER, use="stepped"), replace(EMBEDDING, use="stepped"), HEAD)
MORE = (3800 + 840 + 420) * MIB
"""What a rank that trains the encoder holds more: activations, states and gradients."""


def step(trains: bool) -> list[LineUse]:
    """The lines of a step: an encoder and a head, of which one or both are trained."""
    states, kept = (44, 40) if trains else (2, 2)
    return [
        line(10, "parameters", 24, 20 * MIB, phase="other"),
        line(11, "activations", kept, 100 * MIB, per_step=120 if trains else 40),
        line(12, "optimizer_state", states + 1, 20 * MIB, phase="optimizer"),
        line(
            13, "gradients", states // 2, 20 * MIB, per_step=max(1, states // 2), phase="backward"
        ),
        line(14, "temporaries", 1, 30 * MIB, per_step=10),
    ]


def job(*uses: Sequence[ParameterGroup], held: Sequence[bool] | None = None) -> list[RankSummary]:
    """A rank for each use of the parameters, with the memory that follows from it."""
    trains = held or [any(group.use != "frozen" for group in groups[:2]) for groups in uses]
    return [
        rank_of(number, len(uses), step(more), parameters=tuple(groups), recomputed_bytes=0)
        for number, (groups, more) in enumerate(zip(uses, trains, strict=True))
    ]


def test_of_two_the_rank_that_trains_more_costs_memory() -> None:
    (told,) = compare(job(FROZEN, TRAINED)).differences
    assert (told.ranks, told.cause, told.verdict) == ((1,), "not_frozen", Verdict.PROVEN)
    assert told.bytes == MORE
    assert told.title == (
        "rank 1 trains 25 parameters of encoder (440.00 MiB) that its peers keep frozen:"
        " 4.94 GiB more than its peers"
    )
    assert told.place == Place("train/model.py", 11, "f11")
    assert told.fix.startswith("call requires_grad_(False) on encoder on all ranks")
    assert "BalancedBatchSampler" not in told.fix


def test_no_more_is_blamed_than_the_rank_holds_more() -> None:
    ranks = job(FROZEN, TRAINED)
    other = replace(ranks[0], peak_requested_bytes=ranks[1].peak_requested_bytes - 900 * MIB)
    (told,) = compare([other, ranks[1]]).differences
    assert (told.cause, told.bytes) == ("not_frozen", 900 * MIB)


def test_most_ranks_say_what_is_usual() -> None:
    assert named_causes(compare(job(FROZEN, FROZEN, TRAINED, FROZEN))) == [((2,), "not_frozen")]
    answer = compare(job(TRAINED, TRAINED, FROZEN, TRAINED))
    assert answer.differences == ()
    assert any(
        note.startswith("rank 2 keeps 25 parameters of encoder (440.00 MiB) frozen that its peers")
        for note in answer.notes
    )
    half = compare(job(FROZEN, TRAINED, TRAINED, FROZEN)).differences
    assert [(told.ranks, told.cause) for told in half] == [((1, 2), "not_frozen")]
    assert half[0].title.startswith("ranks 1-2 train 25 parameters of encoder (440.00 MiB) that th")


def test_several_that_freeze_are_one_note() -> None:
    notes = compare(job(TRAINED, FROZEN, TRAINED, FROZEN, TRAINED)).notes
    (note,) = [note for note in notes if "frozen" in note]
    assert note.startswith(
        "ranks 1 and 3 keep 25 parameters of encoder (440.00 MiB) frozen that th"
    )


def test_gradients_that_no_optimizer_uses_are_told_as_such() -> None:
    unstepped = (replace(ENCODER, use="unstepped"), replace(EMBEDDING, use="unstepped"), HEAD)
    (told,) = compare(job(FROZEN, unstepped)).differences
    assert told.title.startswith("rank 1 computes gradients for 25 parameters of encoder")
    assert any("no optimizer has them" in sentence for sentence in told.evidence)


def test_a_part_of_the_layers() -> None:
    """The digests of two uses add up to the whole's: the same layers, four of them frozen."""
    few = replace(ENCODER, modules="encoder.layers.{0-3}.mlp", count=8, bytes=100 * MIB, digest=300)
    rest = replace(
        ENCODER, modules="encoder.layers.{4-11}.mlp", use="stepped", count=16, bytes=300 * MIB
    )
    partly = (few, replace(rest, digest=701), TRAINED[1], HEAD)
    (told,) = compare(job(partly, TRAINED, held=(False, True))).differences
    assert told.title.startswith("rank 1 trains 8 parameters of encoder.layers (100.00 MiB) that")


def test_little_that_is_trained_makes_it_less_sure() -> None:
    """The bias of a first layer keeps the activations of all: or something else holds them."""
    bias = replace(EMBEDDING, bytes=MIB)
    uses = ((ENCODER, bias, HEAD), (ENCODER, replace(bias, use="stepped"), HEAD))
    (told,) = compare(job(*uses)).differences
    assert (told.cause, told.verdict) == ("not_frozen", Verdict.LIKELY)


def other_sizes() -> Sequence[ParameterGroup]:
    return (*(replace(group, digest=group.digest + 5000) for group in TRAINED[:2]), HEAD)


@pytest.mark.parametrize(
    "uses",
    [
        (FROZEN, FROZEN),
        (TRAINED, TRAINED),
        (FROZEN, ()),
        (FROZEN, other_sizes()),
        (FROZEN, (replace(TRAINED[0], modules="decoder.blocks.{0-11}.mlp"), HEAD)),
        ((*FROZEN[:2], HEAD), (*TRAINED[:2], replace(HEAD, use="frozen"))),
    ],
    ids=["both frozen", "both trained", "an older summary", "shards", "stages", "players"],
)
def test_other_parameters_or_both_ways_are_no_such_cause(
    uses: Sequence[Sequence[ParameterGroup]],
) -> None:
    causes = {cause for _, cause in named_causes(compare(job(*uses, held=(False, True))))}
    assert "not_frozen" not in causes


@pytest.mark.parametrize("uses", [(FROZEN, TRAINED), (TRAINED, FROZEN, TRAINED)])
def test_stages_that_number_their_layers_alike(uses: Sequence[Sequence[ParameterGroup]]) -> None:
    """The first stage of a pipeline may be frozen."""
    sends = line(70, "temporaries", 1, MIB, per_step=4, hints=Hint.POINT_TO_POINT)
    ranks = [
        rank_of(rank.rank, len(uses), [*rank.lines, sends], parameters=rank.parameters)
        for rank in job(*uses)
    ]
    answer = compare(ranks)
    assert "not_frozen" not in {cause for _, cause in named_causes(answer)}
    assert not any("frozen" in note for note in answer.notes)


def test_of_a_rank_that_died_early_larger_batches_are_no_training() -> None:
    """It made fewer tensors in all, and as many in a step: those are of a larger batch."""
    ranks = job(FROZEN, TRAINED)
    batch = line(71, "activations", 4, 500 * MIB, per_step=4)
    usual = line(71, "activations", 4, 100 * MIB, per_step=4)
    cut = replace(batch, allocations=8, total_bytes=8 * 500 * MIB)
    odd = rank_of(1, 2, [*ranks[1].lines, cut], parameters=TRAINED, recomputed_bytes=0)
    other = rank_of(0, 2, [*ranks[0].lines, usual], parameters=FROZEN, recomputed_bytes=0)
    told = {one.cause: one.bytes for one in compare([other, odd]).differences}
    assert told["not_frozen"] == MORE


def test_names_of_modules_do_not_steer_a_terminal() -> None:
    named = [
        replace(group, modules=group.modules.replace("enc", "\x1b[31m<i>")) for group in TRAINED
    ]
    answer = compare(job([replace(group, use="frozen") for group in named[:2]] + [HEAD], named))
    assert [told.cause for told in answer.differences] == ["not_frozen"]
    assert "\x1b" not in str(answer)
    assert "\\x1b[31m<i>oder" in str(answer)
    assert "<i>oder" not in answer._repr_html_()


def test_other_roots_are_the_same_parameters() -> None:
    """What is called the model is what an optimizer trains most of."""
    renamed = [
        replace(group, modules=f"model.{group.modules.partition('.')[2]}") for group in TRAINED
    ]
    assert named_causes(compare(job(FROZEN, renamed))) == [((1,), "not_frozen")]


def test_where_memory_does_not_show_it_nothing_is_told() -> None:
    answer = compare(job(FROZEN, TRAINED, FROZEN, held=(False, False, False)))
    assert answer.differences == ()
    answer = compare(job(TRAINED, FROZEN, TRAINED, held=(True, True, True)))
    assert (answer.differences, [note for note in answer.notes if "frozen" in note]) == ((), [])


def test_another_fault_of_the_rank_keeps_its_bytes() -> None:
    """A leak, and an average of the weights that this rank alone has."""
    ranks = job(FROZEN, TRAINED)
    average = replace(line(60, "other", 1, 700 * MIB), hints=Hint.LOGGING)
    grown = line(61, "other", 6, 50 * MIB, per_step=1)
    leak = RankGrowth(Verdict.LIKELY, grown.place, 50 * MIB, 300 * MIB, 6, "empty the list")
    lines = [*ranks[1].lines, average, grown]
    odd = rank_of(1, 2, lines, parameters=ranks[1].parameters, leaks=(leak,), recomputed_bytes=0)
    told = {one.cause: one.bytes for one in compare([ranks[0], odd]).differences}
    alone = compare(ranks).differences[0].bytes
    assert told == {"not_frozen": alone, "rank_only": 700 * MIB, "leak": 300 * MIB}
