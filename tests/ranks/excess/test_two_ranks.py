"""Rules that real jobs on two GPUs asked for: what is a rank's own by nature, and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.recordings import data_of, read
from support.summaries import layers, line, named_causes, rank_of, trainers, with_lines
from vramlens.analyses.finding import Place
from vramlens.ranks import RankSummary, compare, summarise
from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import LineUse, RankFailure, Stray
from vramlens.units import GIB, MIB

OOM = RankFailure(1_700_000_000_000_000, 3, GIB, Place("train.py", 10, "step"), died=True)


def owners(*states: tuple[int, int], hints: Hint = Hint.NONE) -> list[RankSummary]:
    """Trainers with so many optimizer states, of so many MiB each."""
    parameters = line(50, "parameters", 4, 50 * MIB, phase="other", hints=hints)
    return [
        with_lines(rank, parameters, line(52, "optimizer_state", count, size * MIB))
        for rank, (count, size) in zip(trainers(len(states)), states, strict=True)
    ]


def test_the_owner_of_a_large_tensor_has_its_states() -> None:
    """ZeRO's owner of a table: fewer tensors, and more bytes."""
    answer = compare(owners((2, 600), (18, 16)))
    assert answer.differences == ()
    assert answer.notes[0].startswith("each rank has optimizer states of its own")
    assert len(compare(owners((18, 80), (18, 16))).differences) == 1


def test_states_of_a_parameter_that_cannot_be_divided() -> None:
    """FSDP2 pads parameters to one size; states are of what each rank has of them."""
    assert compare(owners((130, 5), (126, 2), hints=Hint.SHARDED)).differences == ()
    assert len(compare(owners((130, 5), (126, 2))).differences) == 1
    assert len(compare(owners((126, 5), (126, 2), hints=Hint.SHARDED)).differences) == 1


def test_a_checkpoint_that_was_given_back_is_no_part_of_the_peak() -> None:
    loads = line(91, "temporaries", 27, 20 * MIB, per_step=27, hints=Hint.LOAD)
    gone = replace(loads, at_peak_bytes=0)
    first, second = trainers(2)
    first = with_lines(first, line(60, "other", 1, 300 * MIB), gone)
    assert named_causes(compare([first, second])) == [((0,), "rank_only")]


def backward(kept: int) -> list[LineUse]:
    """What backward passes make at three lines, of which so many MiB are alive at the peak."""
    made = [
        line(number, "temporaries", 1, kept * MIB, per_step=9, phase="backward")
        for number in (70, 71, 72)
    ]
    return [replace(one, total_bytes=54 * 200 * MIB) for one in made]


@pytest.mark.parametrize(
    ("buckets", "cause"), [(560, "separate_gradients"), (1200, "unknown"), (0, "unknown")]
)
def test_gradients_beside_the_buckets_of_ddp(buckets: int, cause: str) -> None:
    of_buckets = line(80, "gradients", 1, buckets * MIB, per_step=1, hints=Hint.DDP)
    first, second = (
        with_lines(rank, of_buckets, *backward(kept))
        for rank, kept in zip(trainers(2), (380, 200), strict=True)
    )
    (told,) = compare([first, second]).differences
    assert (told.ranks, told.cause, told.bytes) == ((0,), cause, 540 * MIB)
    assert ("gradient_as_bucket_view=True" in told.fix) == (cause == "separate_gradients")


def server(rank: int, steps: int, size: int, **changes: object) -> RankSummary:
    held = [
        line(10, "parameters", 4, 100 * MIB, phase="other"),
        line(12, "temporaries", 8, size * MIB, per_step=40),
    ]
    peak = sum(one.at_peak_bytes for one in held)
    return rank_of(rank, 2, held, step_peaks=(peak,) * steps, **changes)


def test_servers_of_other_requests_hold_other_amounts() -> None:
    """As many steps, and they take turns: then one of them is odd."""
    assert compare([server(0, 32, 50), server(1, 3, 150)]).differences == ()
    assert len(compare([server(0, 32, 50), server(1, 32, 150)]).differences) == 1
    kept = line(60, "other", 1, 300 * MIB)
    odd = server(1, 3, 50)
    odd = replace(
        odd, lines=(*odd.lines, kept), peak_requested_bytes=odd.peak_requested_bytes + 300 * MIB
    )
    assert named_causes(compare([server(0, 32, 50), odd])) == [((1,), "rank_only")]


def forward_only(allocations: int, size: int) -> list[LineUse]:
    made = line(90, "activations", 4, size * MIB, per_step=10)
    return [
        *layers(2, 2),
        replace(made, allocations=allocations, total_bytes=allocations * 20 * MIB),
    ]


def test_what_a_rank_does_that_lived_longer_is_no_difference() -> None:
    """The step that the other one died in goes on: more at once, and as large on average."""
    failure = replace(OOM, requested_bytes=100 * MIB)
    died = rank_of(1, 2, forward_only(600, 40), failure=failure, device_name="H200")
    lived = rank_of(0, 2, forward_only(606, 200), device_name="H200")
    answer = compare([lived, died])
    assert answer.differences == ()
    assert any("a limit of its own" in note for note in answer.notes)


@pytest.mark.parametrize(
    ("reserved", "model"),
    [(3 * GIB, "H200"), (4 * GIB, "L4"), (4 * GIB, None)],
    ids=["not what it asked for", "another GPU", "unknown"],
)
def test_a_limit_is_told_where_an_equal_gpu_gave_more(reserved: int, model: str | None) -> None:
    died = rank_of(1, 2, layers(2, 2), failure=OOM, peak_reserved_bytes=2 * GIB, device_name="H200")
    lived = rank_of(0, 2, layers(2, 2), peak_reserved_bytes=reserved, device_name=model)
    assert not any("a limit of its own" in note for note in compare([lived, died]).notes)


def test_what_stays_says_what_a_line_is_for() -> None:
    """``optimizer.step()`` of a GPT makes as many bytes that pass as its states hold."""
    summary = summarise(read(data_of("recordings/gpt")), 0)
    categories = {use.category for use in summary.lines if use.static}
    assert categories == {"optimizer_state", "parameters"}


def works_alone(rank: int, at: int, common: int = 100) -> RankSummary:
    """A rank whose lines the other one does not have, but for a common one of so many MiB."""
    own = [
        line(at, "parameters", 2, 100 * MIB, phase="other"),
        line(at + 1, "activations", 6, 100 * MIB, per_step=8),
        line(at + 2, "optimizer_state", 4, 100 * MIB * (1 + rank), phase="optimizer"),
    ]
    return rank_of(rank, 2, [*own, line(9, "activations", 1, common * MIB, per_step=2)])


def test_a_generator_and_its_discriminator_are_no_peers() -> None:
    answer = compare([works_alone(0, 20), works_alone(1, 40)])
    assert answer.differences == ()
    assert answer.notes[0].startswith("the ranks do 2 kinds of work (rank 0; rank 1)")
    loss = line(60, "activations", 1, 10 * MIB, per_step=2, hints=Hint.LOSS)
    losing = compare([works_alone(0, 20), with_lines(works_alone(1, 40), loss)])
    assert (
        losing.notes[0] == answer.notes[0]
    )  # a server's worker computes a loss: it is no last stage
    shared = compare([works_alone(0, 20, common=2000), works_alone(1, 40, common=2000)])
    assert shared.differences == ()
    own = [note for note in shared.notes if "alone does this work in every step" in note]
    assert [note.split()[1] for note in own] == ["0", "1"]


def test_what_all_put_on_one_gpu_is_no_fault_of_its_rank() -> None:
    """``.to("cuda:0")`` on every rank: on rank 0 that is where it belongs."""
    table = line(48, "other", 1, 900 * MIB)
    first, second = (replace(rank, host="h", device=rank.rank) for rank in trainers(2))
    first = replace(with_lines(first, table), host="h", device=0)
    stray = Stray(
        device=0, reserved_bytes=900 * MIB, process_bytes=None, place=table.place, hints=Hint.NONE
    )
    (told,) = compare([first, replace(second, strays=(stray,))]).differences
    assert (told.ranks, told.cause) == ((1,), "stray_context")
    assert named_causes(compare([first, second])) == [((0,), "rank_only")]


def test_equal_states_have_no_note() -> None:
    """FSDP's ranks own as much each, in other numbers of allocations."""
    notes = compare(owners((63, 4), (62, 4), hints=Hint.SHARDED)).notes
    assert not any("optimizer states" in note for note in notes)


def experts(count: int, tokens: float = 1.0) -> list[LineUse]:
    parameters = line(50, "parameters", 4, 20 * count * MIB, phase="other", hints=Hint.EXPERTS)
    size = int(30 * count * tokens * MIB)
    return [parameters, line(51, "temporaries", 4, size, per_step=8, hints=Hint.EXPERTS)]


@pytest.mark.parametrize(
    ("counts", "tokens", "told"),
    [
        ((6, 5, 5), 1.0, False),
        ((6, 6, 5, 5, 5), 1.0, False),
        ((5, 6, 5), 1.0, True),
        ((6, 5, 5), 1.3, True),
        ((5, 5, 5), 1.2, True),
    ],
    ids=["one expert more", "two of five", "not the first", "and more tokens", "as many experts"],
)
def test_who_has_one_expert_more_gets_its_tokens(
    counts: tuple[int, ...], tokens: float, told: bool
) -> None:
    ranks = [
        rank_of(rank, len(counts), [*layers(1, 1)[:1], *experts(count, 1.0 if rank else tokens)])
        for rank, count in enumerate(counts)
    ]
    assert bool(compare(ranks).differences) == told
