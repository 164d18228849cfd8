"""The comparison against truth: real two-rank runs, and simulated jobs with one planted cause."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from recordings import DATA, data_of, read
from simulated_ranks import PLANTED, Job, is_activation, planted
from vramlens.ranks import RankSummary, compare, summarise
from vramlens.read.flight_record import read_flight_record
from vramlens.units import MIB

RANKS = DATA / "ranks"


def real(name: str) -> list[RankSummary]:
    return [summarise(read(data_of(f"ranks/{name}/{name}.rank{rank}")), rank) for rank in (0, 1)]


def flights(name: str):
    return {rank: read_flight_record(RANKS / name / f"{name}.rank{rank}.nccl.pickle.xz") for rank in (0, 1)}


@pytest.mark.parametrize("with_flights", [True, False])
def test_a_clean_run_has_no_differences(with_flights: bool) -> None:
    found = compare(real("ddp"), flights("ddp") if with_flights else {})
    assert found.differences == ()
    assert found.collectives == ()


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


WORLD = 16


def job_with(cause: str, rank: int, world: int = WORLD) -> list[RankSummary]:
    usual = planted("moe_usual" if cause == "moe_hot_rank" else "clean")
    ranks = [replace(usual, rank=number, world_size=world) for number in range(world)]
    ranks[rank] = replace(planted(cause, world if cause == "rank0_gather" else 8), rank=rank, world_size=world)
    return ranks


def where(cause: str, world: int) -> int:
    return {"rank0_gather": 0, "data_parallel": 0, "first_last_stage": world - 1}.get(cause, 5 % world)


@pytest.mark.parametrize("world", [2, 3, 8, 256])
@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_named(cause: str, world: int) -> None:
    rank = where(cause, world)
    found = compare(job_with(cause, rank, world))
    assert [(one.ranks, one.cause) for one in found.differences] == [((rank,), cause)]
    _, file, line = PLANTED[cause]
    if file:
        place = found.differences[0].place
        assert place is not None
        assert (place.file, place.line) == (file, line)


@pytest.mark.parametrize("cause", PLANTED)
def test_half_of_the_ranks_may_have_it(cause: str) -> None:
    if cause in ("rank0_gather", "first_last_stage"):
        pytest.skip("of the first or the last rank alone")
    usual = planted("moe_usual" if cause == "moe_hot_rank" else "clean")
    odd = range(0, 8, 2)
    ranks = [replace(planted(cause) if rank in odd else usual, rank=rank, world_size=8) for rank in range(8)]
    found = compare(ranks).differences
    if cause in ("pipeline_stage", "embedding_shard"):  # two sets of ranks with different parameters are stages
        assert {one.cause for one in found} <= {"pipeline_stage"}
    else:
        assert [(one.ranks, one.cause) for one in found] == [(tuple(odd), cause)]


def variants() -> list[RankSummary]:
    found = []
    for factor in (0.985, 0.99, 0.995, 1.0, 1.005, 1.01, 1.015):
        job = Job()
        job.scale(factor, is_activation)
        found.append(job.summary(0))
    return found


def test_a_hundred_clean_jobs_raise_no_alarm() -> None:
    known = variants()
    for seed in range(100):
        chance = random.Random(seed)
        world = chance.choice((2, 4, 8, 64))
        jobs = [replace(chance.choice(known[1:-1]), rank=rank, world_size=world) for rank in range(world)]
        assert compare(jobs).differences == (), seed


def test_the_order_of_ranks_does_not_matter() -> None:
    ranks = job_with("leak", 3)
    assert compare(reversed(ranks)).differences == compare(ranks).differences


def test_nothing_at_all() -> None:
    assert compare([]).differences == ()
    assert compare([planted("clean")]).differences == ()
