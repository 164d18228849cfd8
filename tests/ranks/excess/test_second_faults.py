"""A second, smaller fault on a rank that has one: told by itself."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from support.made_jobs import (
    CopiesWeights,
    Expected,
    Factory,
    KeepsTensors,
    MadeJob,
    done,
    factory,
)
from support.rank_score import answer_of, mistakes, weak_lines
from support.summaries import STEPS, line, trainers, with_lines
from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks import compare
from vramlens.ranks.excess.line_excess import LineExcess, faults_of
from vramlens.ranks.rank_summary import RankGrowth
from vramlens.units import MIB

LINE = line(60, "other", 1, MIB)
METRICS, EMA = ("train/metrics.py", 31), ("train/ema.py", 18)


def job(folder: Path) -> Factory:
    return factory(random.Random("second"), folder, "gpt", world=4)


def share_of_peak(made: Factory, share: float) -> int:
    return int(made.usual_peak().peak_requested * share)


def check(told: MadeJob) -> None:
    answer = answer_of(told)
    assert mistakes(told, answer) == []
    assert weak_lines(told, answer) == []


@pytest.mark.parametrize("smaller", [0.03, 0.06, 0.1])
def test_a_copy_of_the_weights_beside_a_large_leak(tmp_path: Path, smaller: float) -> None:
    """From a tenth to a third of what the rank holds more."""
    made = job(tmp_path)
    made.habits[1] = [
        KeepsTensors(share_of_peak(made, 0.3)),
        CopiesWeights(share_of_peak(made, smaller)),
    ]
    expected = Expected((1,), ("leak",), (METRICS,)), Expected((1,), ("rank_only",), (EMA,))
    check(done(made, "both", *expected))


def test_what_is_under_the_noise_is_not_told(tmp_path: Path) -> None:
    made = job(tmp_path)
    made.habits[1] = [
        KeepsTensors(share_of_peak(made, 0.3)),
        CopiesWeights(share_of_peak(made, 0.01)),
    ]
    check(done(made, "leak", Expected((1,), ("leak",), (METRICS,))))


def test_lines_of_two_files_are_two_faults() -> None:
    alike = trainers(4)
    lines = [line(60, "other", 1, 200 * MIB), line(61, "other", 1, 150 * MIB)]
    places = (Place("train/cache.py", 60, "fill"), Place("train/lm.py", 61, "load"))
    held = [replace(one, place=place) for one, place in zip(lines, places, strict=True)]
    answer = compare([with_lines(alike[0], *held), *alike[1:]])
    assert [(one.cause, one.place, one.bytes) for one in answer.differences] == [
        ("rank_only", places[0], 200 * MIB),
        ("rank_only", places[1], 150 * MIB),
    ]


def test_two_leaks_that_have_a_caller_in_common_are_told_at_their_lines() -> None:
    """The recording sums both at their caller; each line only grows, and no peer has it."""
    alike = trainers(4)
    places = (Place("train/cache.py", 60, "fill"), Place("train/log.py", 61, "remember"))
    growing = [
        replace(line(60 + at, "other", STEPS, size * MIB, per_step=1), place=places[at])
        for at, size in enumerate((50, 40))
    ]
    caller = Place("train/train.py", 61, "step")
    both = RankGrowth(Verdict.LIKELY, caller, 90 * MIB, STEPS * 90 * MIB, STEPS, None)
    odd = replace(with_lines(alike[0], *growing), leaks=(both,))
    answer = compare([odd, *alike[1:]])
    assert [(one.cause, one.place, one.bytes) for one in answer.differences] == [
        ("leak", places[0], STEPS * 50 * MIB),
        ("leak", places[1], STEPS * 40 * MIB),
    ]


def test_many_lines_of_one_fault_stay_one() -> None:
    sizes = {"train/a.py": (50, 40), "train/b.py": (10,)}
    excesses = [
        LineExcess(replace(LINE, place=Place(file, size, "f")), None, size, size)
        for file, of_file in sizes.items()
        for size in of_file
    ]
    assert [len(fault) for fault in faults_of(excesses)] == [3]


@pytest.mark.parametrize(
    ("more", "causes"),
    [(4, ["rank_only"]), (20, ["rank_only", "uneven_batch"]), (0, ["rank_only"])],
)
def test_what_is_left_beside_a_fault_is_told_where_it_would_be_alone(
    more: int, causes: list[str]
) -> None:
    """Parts of a graph differ by some percent by nature; one rank also keeps what it gathered."""
    shares = (100, 97, 98, 99, 100, 101, 102, 103)
    ranks = []
    for at, share in enumerate(shares):
        share += more * (at == 5)
        nodes = line(70, "activations", 10, share * 4 * MIB, per_step=10)
        ranks.append(with_lines(trainers(8)[at], nodes))
    alone = with_lines(ranks[5], line(60, "other", 1, 420 * MIB))
    told = compare([*ranks[:5], alone, *ranks[6:]]).differences
    assert sorted((one.ranks, one.cause) for one in told) == [((5,), cause) for cause in causes]
    assert [one.cause for one in compare(ranks).differences] == causes[1:]


def test_what_is_built_larger_is_a_fault_beside_larger_batches() -> None:
    """No batch has a part in what is there before the first step."""
    activations = line(12, "activations", 4, 100 * MIB, per_step=8)
    buffers = line(70, "other", 2, 50 * MIB)
    alike = [with_lines(rank, activations, buffers) for rank in trainers(4)]
    larger_batch = replace(activations, peak_bytes=600 * MIB, at_peak_bytes=600 * MIB,
                           total_bytes=activations.total_bytes * 3 // 2)  # fmt: skip
    larger_buffers = replace(buffers, peak_bytes=400 * MIB, at_peak_bytes=400 * MIB,
                             total_bytes=400 * MIB)  # fmt: skip
    odd = with_lines(trainers(4)[0], larger_batch, larger_buffers)
    answer = compare([odd, *alike[1:]])
    assert {(one.ranks, one.cause, one.bytes) for one in answer.differences} == {
        ((0,), "uneven_batch", 200 * MIB),
        ((0,), "larger_tensors", 300 * MIB),
    }
