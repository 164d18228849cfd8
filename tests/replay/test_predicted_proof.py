"""A replay of a prediction: the rules that made it give it again, which proves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.recordings import DATA
from vramlens import load
from vramlens.ground.verdict import Confidence
from vramlens.replay.answer import replay_trace
from vramlens.report.replay.story import proof_sentence, recorded_cells

CONF = "expandable_segments:True"


@pytest.mark.parametrize("is_prediction", [False, True])
def test_only_a_recorded_run_is_called_exact(is_prediction: bool) -> None:
    trace = load(DATA / "captured/steps.vram")
    if is_prediction:
        meta = replace(trace.meta, command=("vramlens", "predict", "train.py"))
        trace = replace(trace, meta=meta)
    answer = replay_trace(trace, confs=["", CONF])
    words = proof_sentence(answer.recorded)
    assert answer.recorded.exact
    assert ("exact" in words) is not is_prediction
    assert words.startswith("Estimated: these requests are predicted") is is_prediction
    assert recorded_cells(answer)[-1] == ("predicted" if is_prediction else "recorded")
    usual = Confidence.ESTIMATED if is_prediction else Confidence.EXACT
    assert answer.what_if[0].confidence == usual  # under the recorded settings themselves
