"""What one rank alone does in every step, and what has another size on each rank, is nature."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.summaries import line, named_causes, rank_of, trainers, with_lines
from vramlens.ranks import compare
from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import LineUse, RankSummary
from vramlens.units import GIB, MIB

STEPS = 6


def servers(*, of_first: list[LineUse], world: int = 4) -> list[RankSummary]:
    common = [
        line(10, "parameters", 4, 100 * MIB, phase="other"),
        line(12, "temporaries", 8, 20 * MIB, per_step=40),
    ]
    return [rank_of(rank, world, common + (of_first if not rank else [])) for rank in range(world)]


def draft_of(steps: int, *, hints: Hint = Hint.NONE) -> list[LineUse]:
    """A model that is loaded, its cache, and what each step makes with them."""
    made = line(62, "temporaries", 3, 10 * MIB, per_step=3, hints=hints)
    return [
        line(60, "parameters", 8, 50 * MIB, phase="other", hints=Hint.LOAD),
        line(61, "other", 1, 300 * MIB),
        replace(made, allocations=3 * steps, total_bytes=3 * steps * 10 * MIB),
    ]


def preview_of(steps: int) -> list[LineUse]:
    """A small head that is built, and the large picture that some steps make with it."""
    made = line(64, "temporaries", 1, 400 * MIB, per_step=1)
    return [
        line(63, "parameters", 1, 80 * MIB, phase="other"),
        replace(made, allocations=steps, total_bytes=steps * 400 * MIB),
    ]


def test_a_model_of_one_rank_that_works_in_every_step_is_a_note() -> None:
    answer = compare(servers(of_first=draft_of(STEPS)))
    assert answer.differences == ()
    (note,) = (note for note in answer.notes if "alone does this work" in note)
    assert note.startswith("rank 0 alone does this work in every step, with 730.00 MiB")


@pytest.mark.parametrize(
    "lines",
    [draft_of(STEPS, hints=Hint.EVALUATION), draft_of(STEPS)[:2], preview_of(2)],
    ids=["an evaluation", "never used", "a preview"],
)
def test_what_is_no_work_of_its_own_is_a_difference(lines: list[LineUse]) -> None:
    assert {one.ranks for one in compare(servers(of_first=lines)).differences} == {(0,)}


@pytest.mark.parametrize("lines", [draft_of(2), preview_of(STEPS)], ids=["seldom", "small"])
def test_what_is_built_for_some_steps_or_little_for_every_step_is_its_own(
    lines: list[LineUse],
) -> None:
    answer = compare(servers(of_first=lines))
    assert answer.differences == ()
    assert any("rank 0 alone does this work" in note for note in answer.notes)


def with_table(sizes: list[int]) -> list[RankSummary]:
    ranks = trainers(len(sizes))
    tables = (line(70, "other", 1, size * MIB) for size in sizes)
    return [with_lines(rank, table) for rank, table in zip(ranks, tables, strict=True)]


def test_parts_of_another_size_on_each_rank_are_nature() -> None:
    assert compare(with_table([400, 500, 620, 780])).differences == ()
    assert named_causes(compare(with_table([400, 400, 400, 780]))) == [((3,), "larger_tensors")]
    assert named_causes(compare(with_table([400, 410, 420, 780]))) == [((3,), "larger_tensors")]


def test_where_nothing_but_parts_of_another_size_is_more_nothing_is_told() -> None:
    sizes = (400, 500, 620, 780)
    ranks = [
        replace(rank, peak_requested_bytes=rank.peak_requested_bytes + size * MIB)
        for rank, size in zip(with_table(list(sizes)), sizes, strict=True)
    ]
    assert compare(ranks).differences == ()


def test_replicas_that_all_load_to_their_own_gpu_name_no_map_location() -> None:
    ranks = [
        with_lines(rank, line(58, "other", 12, size * MIB, hints=Hint.LOAD))
        for rank, size in zip(servers(of_first=[]), (20, 20, 20, 90), strict=True)
    ]
    assert "map_location" not in {one.cause for one in compare(ranks).differences}


def test_a_spare_rank_that_took_no_step_is_not_compared() -> None:
    spare = rank_of(4, 5, [line(90, "other", 1, 9 * GIB)], step_peaks=())
    ranks = [replace(rank, world_size=5) for rank in trainers(4)]
    assert compare([*ranks, spare]).differences == ()
