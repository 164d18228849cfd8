"""What an answer says of a failure does not contradict its own figures."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from support.recordings import DATA
from vramlens import load
from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.training import Training
from vramlens.analyses.explanation import Explanation
from vramlens.analyses.failure.first_step.first_step_need import _passes_pile_up
from vramlens.analyses.failure.need import BLOCKS, EARLIER_STEP, Need
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.replay.need.limit_advice import (
    Outlook,
    bytes_of_earlier_passes,
    limit_for,
    missing_bytes,
    with_shortage,
)
from vramlens.report.explain.answer_words import sentences
from vramlens.report.explain.finding_words import unknown_sentences
from vramlens.units import GIB, MIB

FOLDER = DATA / "failures"


@cache
def explained(name: str) -> Explanation:
    return load(FOLDER / f"{name}.vram").explain()


@cache
def view_of(name: str) -> Attribution:
    return load(FOLDER / f"{name}.vram").attribution()


@pytest.mark.parametrize(
    "name", ["lora.cap80", "eval_forgot.cap45", "attention_graph.cap60", "dqn_replay.cap70"]
)
def test_what_failed_under_a_limit_needs_no_less(name: str) -> None:
    oom = explained(name).oom
    assert oom is not None
    assert oom.need is not None
    assert oom.limit_bytes is not None
    assert oom.need.low_bytes >= oom.limit_bytes
    assert oom.need.floor_bytes is not None
    assert oom.need.floor_bytes < oom.limit_bytes, "in one piece, what is known of it would fit"
    if oom.cause == "capacity":
        assert "The memory in use and its gaps leave too little free" in " ".join(
            str(explained(name)).split()
        )


def test_frames_in_a_replay_buffer_wait_for_no_backward_pass() -> None:
    explanation = explained("dqn_replay.cap70")
    largest = explanation.heap.by_line[0]
    assert largest.category == "other"
    assert "activations" not in {finding.id for finding in explanation.findings}


def test_what_modules_computed_and_a_list_keeps_are_activations() -> None:
    view = view_of("kept_loss.cap45")
    alive = view.device.allocations.alive_after(view.device.out_of_memory[-1].event)
    computed = view.modules.marked[alive] & (view.categories.category[alive] == Category.OTHER)
    assert not computed.any()


def test_what_an_earlier_step_left_is_no_pass_of_this_one() -> None:
    """The failed step begins after the last backward pass: nothing of it has piled up."""
    view = view_of("eval_forgot.cap45")
    alive, event = _alive_of("eval_forgot.cap45")
    earlier = alive[view.device.allocations.born[alive] < view.steps.starts[-1]]
    assert _passes_pile_up(view_of("maml.cap60"), *_alive_of("maml.cap60"))
    assert not _passes_pile_up(view, earlier, event)


def _alive_of(name: str) -> tuple[np.ndarray, int]:
    view = view_of(name)
    event = view.device.out_of_memory[-1].event
    return view.device.allocations.alive_after(event), event


def test_a_saving_that_is_too_small_says_so() -> None:
    need = Need(None, 4 * GIB, None, None, floor_bytes=4 * GIB)
    missing = missing_bytes(need, 3 * GIB)
    assert missing == GIB
    assert missing_bytes(need, None) == missing_bytes(need, 5 * GIB) == 0
    gradients = Finding("gradients_kept", Verdict.LIKELY, "kept", 256 * MIB, fix="zero_grad()")
    told = with_shortage(gradients, missing)
    assert told.fix == "zero_grad(); not enough alone: 768.00 MiB more are missing"
    assert with_shortage(replace(gradients, bytes=GIB), missing).fix == "zero_grad()"
    assert with_shortage(replace(gradients, id="leak"), missing).fix == "zero_grad()"


def test_what_passes_without_training_keep_asks_for_room() -> None:
    need = Need(None, GIB, 2 * GIB, BLOCKS)
    alone, keeping = Outlook(False, False), Outlook(False, False, kept_by_passes=GIB // 2)
    assert limit_for(need, keeping) > limit_for(need, alone)
    steps = replace(need, basis=EARLIER_STEP)
    assert limit_for(steps, keeping) == limit_for(steps, alone)


def test_caches_of_earlier_passes_are_counted() -> None:
    recording = load(DATA / "found/inference_kv.pickle.xz").attribution()
    assert bytes_of_earlier_passes(replace(recording, training=Training.SEEN)) == 0


def test_the_least_need_holds_the_failed_request_as_it_is_reserved() -> None:
    explanation = load(DATA / "recordings/oom_fragmented.pickle.xz").explain()
    assert unknown_sentences(explanation)[-1].startswith(
        "What this step needs to finish: at least 2.50 GiB (1.91 GiB reserved so far, and this"
        " request)."
    )
    assert (explanation.findings[0].fix or "").endswith(
        "(1.0): with this request, 2.50 GiB are reserved; the rest of the step is not recorded and"
        " may need more"
    )


def test_capacity_says_against_what_and_a_delay_says_how_long() -> None:
    explanation = explained("hand_lora.cap75")
    assert "Cause: capacity. Even without gaps, this step needs more than the limit." in sentences(
        explanation
    )
    titles = [row.title for row in explained("gpt.cap90").findings]
    assert any(
        "only delays the failure: it fails 256.00 MiB of requests later" in title
        for title in titles
    )
