"""The comparison against truth: real two-rank runs, and jobs with one planted cause."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

import vramlens
from support.planted_ranks import CAUSES, CLEAN, base_of, planted, usual, where
from support.recordings import DATA, data_of, read
from support.summaries import trainers
from vramlens.ranks import RankSummary, compare, summarise
from vramlens.read.flight_record import read_flight_record
from vramlens.report.ranks.ranks_page import comparison_to_html
from vramlens.units import GIB, MIB

RANKS = DATA / "ranks"


def real(name: str) -> list[RankSummary]:
    return [summarise(read(data_of(f"ranks/{name}/{name}.rank{rank}")), rank) for rank in (0, 1)]


def flights(name: str):
    return {
        rank: read_flight_record(RANKS / name / f"{name}.rank{rank}.nccl.pickle.xz")
        for rank in (0, 1)
    }


@pytest.mark.parametrize("with_flights", [True, False])
def test_a_clean_run_has_no_differences(with_flights: bool) -> None:
    found = compare(real("ddp"), flights("ddp") if with_flights else {})
    assert found.differences == ()
    assert found.collectives == ()


def test_recordings_of_different_programs_accuse_nobody() -> None:
    programs = [read(data_of(f"recordings/{name}")) for name in ("gpt", "resnet50", "leak_cycle")]
    summaries = [summarise(trace, rank) for rank, trace in enumerate(programs)]
    of_two = compare(summaries[:2])
    assert of_two.differences == ()
    assert of_two.strangers == {0, 1}
    assert of_two.is_no_job
    assert "put the rank into each file's name" in of_two.notes[0]
    beside_a_job = compare([*real("ddp"), summarise(programs[1], 2)])
    assert beside_a_job.differences == ()
    assert beside_a_job.strangers == {2}
    assert beside_a_job.notes[0].startswith("rank 2 looks like a recording of another program")


def test_programs_that_share_a_model_accuse_nobody() -> None:
    """They share most of their lines: each one's own training function tells them apart."""
    names = ("oom_leak", "gpt_annotated")
    programs = [
        summarise(read(data_of(f"recordings/{name}")), rank) for rank, name in enumerate(names)
    ]
    comparison = compare(programs)
    assert comparison.is_no_job
    assert comparison.findings == ()
    title, *_ = str(comparison).splitlines()
    assert title.startswith("These 2 recordings are not one job")
    assert "Failures, in order" not in str(comparison)
    assert "rank " not in str(comparison).partition("note: ")[0]  # no table that reads as a job's
    assert all(program.source in str(comparison) for program in programs)
    assert "<th>rank</th>" not in comparison_to_html(comparison)
    names_of_ranks = [replace(rank, source=f"run/rank{rank.rank}.pickle") for rank in programs]
    assert not compare(names_of_ranks).is_no_job  # who names them so says that they are one job


def test_recordings_of_programs_beside_a_jobs_are_no_ranks() -> None:
    """The job's own files say their ranks; the others share a model and differ in what they do."""
    named = [replace(rank, source=f"run/rank{rank.rank}.pickle") for rank in real("ddp")]
    unnamed = [
        summarise(read(data_of(f"recordings/{name}")), 2 + at)
        for at, name in enumerate(("oom_leak", "gpt_annotated"))
    ]
    beside_a_job = compare([*named, *unnamed])
    assert beside_a_job.strangers == {2, 3}
    assert not beside_a_job.differences
    assert compare([*named[:1], *unnamed]).is_no_job  # most of them are none of the job's


@pytest.mark.parametrize(("name", "cause"), [("leak_rank1", "leak"), ("rank0_gather", None)])
def test_a_job_whose_files_name_no_rank_is_compared(name: str, cause: str | None) -> None:
    summaries = [replace(rank, source=f"run/{rank.rank}.pickle") for rank in real(name)]
    comparison = compare(summaries)
    assert not comparison.strangers
    assert cause is None or comparison.differences[0].cause == cause
    assert comparison.differences


@pytest.mark.parametrize("with_flights", [True, False])
@pytest.mark.parametrize(
    ("name", "rank", "cause", "line"),
    [
        ("leak_rank1", 1, "leak", "train/multi.py:46"),
        ("rank0_gather", 0, "rank0_gather", "train/multi.py:39"),
        ("wrong_device", 1, "stray_context", None),
    ],
)
def test_real_runs(name: str, rank: int, cause: str, line: str | None, with_flights: bool) -> None:
    (one,) = compare(real(name), flights(name) if with_flights else {}).differences
    assert (one.ranks, one.cause) == ((rank,), cause)
    assert (None if one.place is None else f"{one.place.file}:{one.place.line}") == line


def test_a_rank_that_died_in_its_first_step_is_compared_by_the_size_of_what_it_asked_for() -> None:
    """Batch 64 beside 8: it made fewer allocations than its peer, which went on, and never came
    to some lines.
    """
    (one,) = compare(real("oom_one")).differences
    assert (one.ranks, one.cause) == ((1,), "uneven_batch")
    assert str(one.place) == "train/gpu_jobs.py:28 in forward"


def test_a_stray_context_has_the_bytes_of_its_segments() -> None:
    (one,) = compare(real("wrong_device")).differences
    assert one.bytes == 258 * MIB
    assert "before recording began" in " ".join(one.evidence)


def test_ranks_that_disagree_on_a_collective() -> None:
    found = compare([], flights("desync"))
    (one,) = found.differences
    assert (one.cause, one.ranks) == ("desync", (0, 1))
    assert [(row.rank, row.seq, row.name, str(row.place)) for row in found.collectives] == [
        (0, 6, "all_reduce", "train/multi.py:62 in desync"),
        (1, 6, "all_gather", "train/multi.py:63 in desync"),
    ]
    assert not any(row.suspected for row in found.collectives)


BASE = base_of("ranks/leak_rank1/leak_rank1.rank0.pickle.xz")
# Its parameters are older than the recording: shards of them are in test_planted.
NAMES = [name for name in CAUSES if name != "uneven_shard"]


def job_with(name: str, ranks: Sequence[int], world: int) -> list[RankSummary]:
    alike = usual(BASE, name)
    odd = planted(BASE, name, 0.4, world if name == "gather_list" else 8)  # a tensor of each rank
    found = [odd if rank in ranks else alike[rank % len(alike)] for rank in range(world)]
    return [replace(one, rank=rank, world_size=world) for rank, one in enumerate(found)]


@pytest.mark.parametrize("world", [2, 3, 8, 256])
@pytest.mark.parametrize("name", NAMES)
def test_a_planted_cause_is_named(name: str, world: int) -> None:
    rank = where(name, world, 5 % world)
    found = compare(job_with(name, [rank], world)).differences
    _, cause, line, _ = CAUSES[name]
    assert [(one.ranks, one.cause) for one in found] == [((rank,), cause)]
    if line is not None:
        place = found[0].place
        assert place is not None
        assert (place.file, place.line) == line


@pytest.mark.parametrize("name", [name for name in NAMES if CAUSES[name][3] == "any"])
def test_half_of_the_ranks_may_have_it(name: str) -> None:
    odd = tuple(range(0, 8, 2))
    found = compare(job_with(name, odd, 8)).differences
    cause = CAUSES[name][1]
    if cause in (
        "pipeline_stage",
        "embedding_shard",
    ):  # two sets of ranks with different parameters are stages
        assert {one.cause for one in found} <= {"pipeline_stage"}
    else:
        assert [(one.ranks, one.cause) for one in found] == [(odd, cause)]


def test_a_hundred_clean_jobs_raise_no_alarm() -> None:
    for seed in range(100):
        world = random.Random(seed).choice((2, 4, 8, 64))
        assert compare(CLEAN["same"](BASE, world, seed)).differences == (), seed


def test_the_order_of_ranks_does_not_matter() -> None:
    ranks = job_with("leak", [3], 16)
    assert compare(reversed(ranks)).differences == compare(ranks).differences


def test_nothing_at_all() -> None:
    assert compare([]).differences == ()
    assert compare(usual(BASE)[:1]).differences == ()


@pytest.mark.parametrize("other", ["gpt.vram", "fsdp2-rank1.vram"])
def test_a_rank_that_holds_less_but_has_lines_of_its_own(other: str) -> None:
    """Recordings of two programs taken for two ranks: they are told apart by what they call."""
    files = (DATA / "captured" / "ddp-rank0.vram", DATA / "captured" / other)
    ranks = [summarise(vramlens.load(file), rank) for rank, file in enumerate(files)]
    assert ranks[1].peak_requested_bytes < ranks[0].peak_requested_bytes
    answer = compare(ranks)
    assert answer.cohorts.members == ((0,), (1,))
    assert answer.notes[0].startswith("the ranks do 2 kinds of work (rank 0; rank 1)")


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ((1, 1, 35, 1), ("rank 2 keeps", "35.00 GiB on rank 2, usually 1.00 GiB")),
        ((4, 4, 7, 8, 4, 4), ("ranks 2-3 keep", "8.00 GiB on rank 3, usually 4.00 GiB")),
        ((4, 4, 5, 4), ()),  # a quarter more
        ((0, 0, 9, 9), ()),  # half of the ranks: none of them is usual
        ((0, None, 9, None), ()),
    ],
)
def test_page_locked_memory_of_the_host_is_a_note(
    sizes: tuple[int | None, ...], told: tuple[str, ...]
) -> None:
    ranks = [
        replace(rank, pinned_bytes=None if size is None else size * GIB)
        for rank, size in zip(trainers(len(sizes)), sizes, strict=True)
    ]
    answer = compare(ranks)
    assert answer.differences == ()
    notes = [note for note in answer.notes if "page-locked" in note]
    assert len(notes) == bool(told)
    assert all(words in notes[0] for words in told)
