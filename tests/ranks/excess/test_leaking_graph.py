"""A graph that leaks has many lines, and is one leak."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.recordings import DATA, data_of, read
from support.summaries import STEPS, line, pipeline, trainers, with_lines
from vramlens import load
from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks import RankSummary, compare, summarise
from vramlens.ranks.rank_summary import LineUse, RankGrowth
from vramlens.units import MIB

SIZE = 9 * MIB


def graph(*sizes: int) -> list[LineUse]:
    """Lines of which each step keeps one tensor; the second one makes another, which passes."""
    lines = [line(61 + at, "other", STEPS, size, per_step=1) for at, size in enumerate(sizes)]
    passing = replace(lines[1], per_step=2, allocations=2 * STEPS,
                      peak_bytes=lines[1].peak_bytes + 2 * sizes[1],
                      total_bytes=3 * lines[1].total_bytes)  # fmt: skip
    return [lines[0], passing, *lines[2:]]


def leaking(rank: RankSummary, *sizes: int) -> RankSummary:
    """A rank that keeps a graph of so many lines; the leak is judged without the last step."""
    lines = graph(*sizes)
    places = tuple(one.place for one in lines if one.place is not None)
    per_step = sum(sizes)
    leak = RankGrowth(
        Verdict.LIKELY, places[0], per_step, (STEPS - 1) * per_step, STEPS - 1, "detach", places
    )
    return replace(with_lines(rank, *lines), leaks=(leak,))


@pytest.mark.parametrize("sizes", [(SIZE, SIZE), (SIZE, SIZE, SIZE), (3 * SIZE, SIZE)])
@pytest.mark.parametrize("world", [2, 4])
def test_a_graph_that_leaks_at_several_lines_is_one_leak(
    world: int, sizes: tuple[int, ...]
) -> None:
    alike = trainers(world)
    (told,) = compare([leaking(alike[0], *sizes), *alike[1:]]).differences
    assert (told.ranks, told.cause, told.bytes) == ((0,), "leak", STEPS * sum(sizes))
    assert told.place == Place("train/model.py", 61, "f61")
    for at, size in enumerate(sizes):
        place = f"train/model.py:{61 + at} in f{61 + at}"
        assert any(f"+{STEPS * size // MIB}.00 MiB at {place}" in said for said in told.evidence)


def test_a_leak_of_one_line_names_it_once() -> None:
    alike = trainers(2)
    kept = line(61, "other", STEPS, SIZE, per_step=1)
    lines = (Place("train/model.py", 61, "f61"),)
    leak = RankGrowth(Verdict.LIKELY, kept.place, SIZE, STEPS * SIZE, STEPS, "detach", lines)
    (told,) = compare([replace(with_lines(alike[0], kept), leaks=(leak,)), alike[1]]).differences
    assert not any("f61" in said for said in told.evidence)


def test_a_graph_that_leaks_on_a_stage_is_one_leak() -> None:
    """Nobody does the same work as a stage; lines of its own are told beside its leaks."""
    stages = pipeline()
    odd = leaking(stages[1], 40 * MIB, 40 * MIB)
    odd = replace(odd, leaks=(replace(odd.leaks[0], verdict=Verdict.PROVEN),))
    told = compare([stages[0], odd, *stages[2:]]).differences
    assert [(one.ranks, one.cause, one.bytes) for one in told] == [((1,), "leak", STEPS * 80 * MIB)]


def test_a_graph_that_all_ranks_keep_has_the_bytes_of_all_its_lines() -> None:
    (finding,) = compare([leaking(rank, SIZE, SIZE) for rank in trainers(4)]).findings
    assert (finding.id, finding.bytes) == ("leak", STEPS * 2 * SIZE)


def test_a_leak_that_is_told_at_a_caller_has_no_lines() -> None:
    """They may be those of several leaks; that it has bytes, its steps say."""
    for leak in summarise(read(data_of("recordings/leak_outputs")), 0).leaks:
        assert leak.lines == ()


def test_a_recording_says_which_lines_a_leak_has() -> None:
    summary = summarise(load(DATA / "failures" / "maml_fewshot.cap70.vram"), 0)
    (leak,) = summary.leaks
    assert [one.line for one in leak.lines] == [37, 38]  # and a small part at 39
    assert leak.place == leak.lines[0]
    assert {one.place for one in summary.lines}.issuperset(leak.lines)
