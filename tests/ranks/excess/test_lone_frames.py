"""Callers that only one rank has: the lines that hold the memory are lines that all have."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.made_jobs import (
    Evaluates,
    Expected,
    Factory,
    Fragments,
    LongerSequences,
    Validates,
    done,
    factory,
    planted_size,
)
from support.rank_score import answer_of, mistakes, weak_lines
from support.simulated_gpu import GIB

VALIDATE, PREVIEW = ("train/validate.py", 39), ("train/preview.py", 44)
EMA, PREDICTIONS = ("train/ema.py", 18), ("train/evaluate.py", 35)


def job(folder: Path, kind: str = "gpt", world: int = 4) -> Factory:
    return factory(random.Random("3"), folder, kind, world=world)


@pytest.mark.parametrize("scale", [1.2, 1.6])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_a_validation_that_only_one_rank_runs_is_named(
    tmp_path: Path, world: int, scale: float
) -> None:
    made = job(tmp_path, world=world)
    made.habits[1] = [Validates(scale)]
    validating = done(made, "validates", Expected((1,), ("rank_only",), (VALIDATE,)))
    answer = answer_of(validating)
    assert mistakes(validating, answer) == []
    assert "which no peer makes" in answer["differences"][0]["evidence"][0]


def test_a_validation_of_all_ranks_that_is_larger_on_one_is_not_a_caller_of_its_own(
    tmp_path: Path,
) -> None:
    made = job(tmp_path)
    made.habits[-2] = [Validates(1.3)]
    made.habits[2] = [LongerSequences(1.4)]
    larger = done(made, "longer", Expected((2,), ("uneven_batch",)))
    assert mistakes(larger, answer_of(larger)) == []


def test_a_line_of_one_rank_that_explains_the_peak_is_named_before_its_caller(
    tmp_path: Path,
) -> None:
    made = job(tmp_path)
    made.habits[0] = [Evaluates(planted_size(made, 0.2, 0.3))]
    evaluating = done(made, "evaluates", Expected((0,), ("rank_only",), (PREDICTIONS,)))
    answer = answer_of(evaluating)
    assert mistakes(evaluating, answer) == []
    assert weak_lines(evaluating, answer) == []


def test_segments_that_one_rank_alone_had_reserved_are_told_at_their_line(tmp_path: Path) -> None:
    made = job(tmp_path)
    made.habits[3] = [Fragments()]
    (told,) = answer_of(done(made, "fragments"))["differences"]
    assert (told["ranks"], told["cause"]) == ([3], "allocator")
    assert (told["file"], told["line"]) == PREVIEW
    assert "were reserved for calls at train/preview.py:44" in told["evidence"][0]
    assert "this explains" not in " ".join(told["evidence"])


def test_what_was_reserved_for_a_line_with_a_difference_of_its_own_is_no_second_one(
    tmp_path: Path,
) -> None:
    """Its tensors need new segments, and go: what is reserved then is more than its peak is
    higher.
    """
    made = job(tmp_path, "conv")
    made.habits[0] = [Evaluates(planted_size(made, 0.03, 0.03), batches=1)]
    evaluating = done(made, "evaluates", Expected((0,), ("rank_only",), (PREDICTIONS,)))
    assert evaluating.reserves_more(0) > GIB // 4
    assert [one["cause"] for one in answer_of(evaluating)["differences"]] == ["rank_only"]
