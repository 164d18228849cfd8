"""The largest batch that fits a first step: a range, or why there is none."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.failure.first_step.first_step_need import StepBounds
from vramlens.analyses.failure.need import BLOCKS, Need
from vramlens.analyses.finding import Finding
from vramlens.analyses.recording_explanation import explain_trace
from vramlens.replay.need.batch_findings import _as_range, _no_batch_surely_fits

FOLDER = DATA / "failures"
TRUTH: dict[str, Any] = json.loads((FOLDER / "truth.json").read_text())
FIRST_STEPS = ["resnet50.cap70", "ode.cap92", "lora.cap80"]
GIB = 2**30


def findings_of(name: str) -> tuple[Finding, ...]:
    return load(FOLDER / f"{name}.vram").explain().findings


@pytest.mark.parametrize("name", FIRST_STEPS)
def test_a_first_step_is_advised_a_batch_that_fits(name: str) -> None:
    finding = next(one for one in findings_of(name) if one.id == "smaller_batch")
    shares = re.search(r"is (0\.\d\d)x to (0\.\d\d)x this one", finding.fix or "")
    assert shares is not None
    surely, possibly = map(float, shares.groups())
    program = TRUTH[name.split(".")[0]]
    allowed = program["limits"][name]["cap_bytes"] / program["peak_reserved_bytes"]
    assert surely < allowed, "memory that stays makes the batch that fits smaller than the limit is"
    assert surely < possibly
    assert (finding.bytes or 0) <= program["limits"][name]["cap_bytes"]


@pytest.mark.parametrize("name", [*sorted({*FIRST_STEPS} - {"ode.cap92"}), "gpt.cap90"])
def test_a_computed_batch_takes_the_place_of_the_rough_one(name: str) -> None:
    """By the sums alone the activations' finding speaks of the batch: then the replay computes it. In
    a solver's steps another finding takes its place.
    """
    rough = explain_trace(load(FOLDER / f"{name}.vram")).findings
    fixes = {one.id: (one.fix, one.fix_without_batch) for one in rough}
    with_batch, without_batch = fixes["activations"]
    assert with_batch != without_batch
    told = {one.id: one.fix for one in findings_of(name)}
    assert told["smaller_batch"] is not None
    assert told["activations"] == without_batch


def test_where_what_stays_fills_the_limit_no_batch_is_advised() -> None:
    bounds = StepBounds(GIB, 4 * GIB, 8 * GIB, 9 * GIB, None)
    assert bounds.surely_fitting_share(7 * GIB) == 0
    finding = _no_batch_surely_fits(bounds, 7 * GIB)
    assert finding.fix is None
    assert "may take 8.00 GiB of 7.00 GiB at any batch size" in finding.title


def test_the_range_is_the_share_of_both_bounds() -> None:
    bounds = StepBounds(GIB, 4 * GIB, 2 * GIB, 8 * GIB, None)
    assert bounds.surely_fitting_share(4 * GIB) == pytest.approx(0.25)
    assert bounds.possibly_fitting_share(4 * GIB) == pytest.approx(0.75)
    fix = _as_range(bounds, 0.25, 4 * GIB, "").fix
    assert fix is not None
    assert "at most 4.00 GiB of 4.00 GiB" in fix
    assert "0.25x to 0.75x" in fix


def test_an_optimizer_that_failed_says_why_there_is_no_batch() -> None:
    explanation = load(DATA / "found/optimizer_oom.pickle.xz").explain()
    assert explanation.oom is not None
    need = explanation.oom.need
    assert isinstance(need, Need)
    assert need.basis == BLOCKS
    finding = next(one for one in explanation.findings if one.id == "smaller_batch")
    assert finding.fix is None
    assert "optimizer state has the same size at any batch size" in finding.title


def test_where_little_surely_fits_the_batch_is_halved_first() -> None:
    """A range from 0.05 to 0.90 names no batch to begin with."""
    bounds = StepBounds(GIB, 4 * GIB, 2 * GIB, 40 * GIB, None)
    fix = _as_range(bounds, 0.05, 4 * GIB, "").fix
    assert fix is not None
    assert fix.startswith("halve the batch, and half of that if it still fails")
    assert "is 0.05x to 0.75x this one (at 0.05x, at most 4.00 GiB of 4.00 GiB" in fix


def test_a_batch_that_cannot_fit_is_not_tried_first() -> None:
    """From 0.09 to 0.31: half of the batch fails by the range's own word."""
    bounds = StepBounds(GIB, 6 * GIB, 2 * GIB, 70 * GIB, None)
    fix = _as_range(bounds, 0.05, 3 * GIB, "").fix
    assert fix is not None
    assert "is 0.05x to 0.33x this one" in fix
    assert fix.startswith("use 1/4 of the batch, and half of that if it still fails")
