"""A small part of benchmarks/rank_faults.py: each kind of fault once, in small jobs that a simulator
made; and the rules that its first run showed to be wrong.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from support import made_jobs
from support.rank_faults import (
    KINDS,
    evaluation_on_rank_0,
    leak,
    made_job,
    two_faults,
    uneven_length,
)
from support.rank_score import answer_of, mistakes, weak_lines
from vramlens.analyses.finding import Place
from vramlens.ranks.excess.causes import Position, cause_of
from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import LineUse


@pytest.fixture(autouse=True)
def small_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_jobs, "WORLDS", (2, 3, 4))


@pytest.mark.parametrize("seed", range(2200, 2200 + len(KINDS)))
def test_what_was_planted_is_told_and_nothing_else(tmp_path: Path, seed: int) -> None:
    job = made_job(seed, tmp_path / "job")
    answer = answer_of(job)
    assert mistakes(job, answer) == []
    assert weak_lines(job, answer) == []


@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        (leak, ("leak 0", "leak 22")),  # on rank 0 of two, one tensor a step
        (evaluation_on_rank_0, ("evaluation_on_rank_0 26",)),
        (uneven_length, ("uneven_length 1039",)),  # no line has half of the bytes
        (two_faults, ("two_faults 1006", "two_faults 1050")),  # too few steps to see growth
    ],
)
def test_jobs_that_were_told_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: object, seeds: tuple[str, ...]
) -> None:
    assert callable(kind)
    for seed in seeds:
        monkeypatch.setattr(made_jobs, "WORLDS", (2,))
        folder = tmp_path / seed.replace(" ", "")
        folder.mkdir()
        job = kind(random.Random(seed), folder)
        answer = answer_of(job)
        assert mistakes(job, answer) == []
        assert weak_lines(job, answer) == []


LIST = LineUse(
    place=Place("train/log.py", 12, "remember"),
    hints=Hint.NONE,
    category="activations",
    phase="forward",
    peak_bytes=8 << 20,
    at_peak_bytes=8 << 20,
    allocations=8,
    total_bytes=8 << 20,
    per_step=2,
    sizes=1,
    static=False,
)
FIRST_OF_TWO = Position(
    first=True, last=False, world=2, sends=False, unlike=False, gathers=frozenset()
)


def test_equal_tensors_are_gathered_where_each_step_has_one_of_every_rank() -> None:
    assert cause_of(LIST, None, FIRST_OF_TWO) == "rank0_gather"
    # An odd number in all, or all of them in one burst, is no gather of two ranks.
    assert cause_of(replace(LIST, allocations=7), None, FIRST_OF_TWO) == "leak"
    assert cause_of(replace(LIST, per_step=8), None, FIRST_OF_TWO) == "rank_only"


def test_evaluation_of_the_first_rank_alone_gathers_nothing() -> None:
    evaluating = replace(LIST, hints=Hint.EVALUATION, allocations=5, per_step=5)
    assert cause_of(evaluating, None, FIRST_OF_TWO) == "rank_only"
    assert cause_of(evaluating, evaluating, FIRST_OF_TWO) == "rank0_gather"
