"""Steps of the run: what repeats within one pass, its blocks or micro-batches, is called no step."""

from __future__ import annotations

import re

import pytest

from support.documents import markdown
from support.recordings import DATA
from vramlens import api
from vramlens.analyses.recording_explanation import explain_trace


@pytest.mark.parametrize("name", ["moe_lm.cap50", "hand_lora.cap75", "accumulate.cap80"])
def test_the_blocks_of_one_pass_are_called_no_steps(name):
    explanation = explain_trace(api.load(DATA / f"failures/{name}.vram"), at="peak")
    assert explanation.steps.count == 0
    assert explanation.peak is not None
    assert explanation.peak.shape is None
    assert explanation.heap is not None
    assert explanation.heap.step is None
    text = markdown(explanation)
    assert not re.search(r"\bstep \d", text, re.IGNORECASE)


def test_steps_of_the_run_are_told():
    explanation = explain_trace(api.load(DATA / "pairs/gpt.vram"))
    assert explanation.steps.count == 3
    assert explanation.peak is not None
    assert explanation.peak.shape is not None
    assert explanation.peak.shape.startswith("Step ")
