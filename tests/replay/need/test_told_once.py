"""One thing is told once: what a fault explains is no finding of its own behind it."""

from __future__ import annotations

import numpy as np
import pytest

from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.replay.need.advice_order import told_once

SIZES = np.full(10, 100, np.int64)


def about(
    name: str, *rows: int, verdict: Verdict = Verdict.LIKELY, fix: str | None = "edit"
) -> Finding:
    extent = Extent(7, np.array(rows, np.int64))
    return Finding(id=name, verdict=verdict, title=name, bytes=1, fix=fix, extent=extent)


def ids(*findings: Finding) -> list[str]:
    return [finding.id for finding in told_once(findings, SIZES)]


FAULT = about("eval_with_grad", 0, 1, 2, 3)


@pytest.mark.parametrize(
    ("rows", "is_told"), [((0, 1, 2, 3), False), ((0, 1, 2, 3, 4), False), ((2, 3, 4, 5), True)]
)
def test_what_a_fault_explains_is_not_told_again(rows: tuple[int, ...], is_told: bool) -> None:
    told = ids(FAULT, about("activations", *rows))
    assert told == ["eval_with_grad", *(["activations"] if is_told else [])]


def test_the_order_decides() -> None:
    assert ids(about("activations", 0, 1, 2, 3), FAULT) == ["activations", "eval_with_grad"]


@pytest.mark.parametrize(
    "first",
    [
        about("eval_with_grad", 0, 1, verdict=Verdict.POSSIBLE),
        about("eval_with_grad", 0, 1, fix=None),
        about("larger_inputs", 0, 1),  # they may be meant so
        about("optimizer_state", 0, 1),
    ],
)
def test_what_is_unsure_or_no_fault_explains_nothing(first: Finding) -> None:
    assert ids(first, about("activations", 0, 1)) == [first.id, "activations"]


def test_findings_about_no_tensors_stay() -> None:
    limit = Finding(id="process_limit", verdict=Verdict.PROVEN, title="limit", fix="raise it")
    assert ids(FAULT, limit, about("expandable_segments")) == [
        "eval_with_grad",
        "process_limit",
        "expandable_segments",
    ]


@pytest.mark.parametrize(
    ("first", "is_told"),
    [
        (about("kept_in_store", 0), False),
        (about("leak", 0), False),
        (about("kept_in_store", 0, verdict=Verdict.POSSIBLE), True),
        (about("attention_written_out", 0), True),
    ],
)
def test_no_batch_is_small_enough_for_what_grows(first: Finding, is_told: bool) -> None:
    batch = Finding(id="smaller_batch", verdict=Verdict.LIKELY, title="batch", fix="halve it")
    assert ids(first, batch) == [first.id, *(["smaller_batch"] if is_told else [])]
