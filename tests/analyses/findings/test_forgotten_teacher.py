"""A teacher in eval mode whose gradients no optimizer uses; and models that are trained so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.vram_files import GptMarks, in_validation, marked, vram
from vramlens import Recording, load
from vramlens.analyses.finding import Finding

MODULE = "model.blocks.0.attn"


def in_training(functions: set[str]) -> str:
    return " [eval+grad]" if "train_step" in functions else ""


def opened(tmp_path: Path, stepped_root: str, gradients: str = MODULE) -> Recording:
    """A training whose model is in eval mode: of which its optimizer steps a root's parameters."""
    value = marked("found/eval_graph", GptMarks(in_training))
    stepped = MODULE.replace("model", stepped_root, 1)
    names = [named(n, f"grad[{gradients}.w{n}]", "gradient") for n in range(4)]
    names += [
        named(9 + n, f"optimizer.exp_avg[{stepped}.w{n}]", "optimizer_state") for n in range(4)
    ]
    return load(vram(tmp_path / "a.vram", value, names={"tensors": names}))


def named(number: int, name: str, kind: str) -> dict[str, Any]:
    """An entry of names.json, of a block that is none of the recording's."""
    return {
        "device": 0,
        "address": 2**50 + 4096 * number,
        "bytes": 4096,
        "name": name,
        "kind": kind,
    }


def told(recording: Recording) -> Finding | None:
    findings = recording.explain().findings
    return next((one for one in findings if one.id == "eval_with_grad"), None)


def test_gradients_that_no_optimizer_uses_are_a_teachers(tmp_path: Path) -> None:
    finding = told(opened(tmp_path, "student"))
    assert finding is not None
    assert finding.verdict == "likely"
    assert "no optimizer uses" in finding.title
    assert "torch.no_grad()" in (finding.fix or "")


def test_what_is_trained_in_eval_mode_is_no_teacher(tmp_path: Path) -> None:
    assert told(opened(tmp_path, "model")) is None


def test_a_frozen_model_that_passes_gradients_on_is_no_teacher(tmp_path: Path) -> None:
    """A perceptual loss: its own parameters have no gradients."""
    assert told(opened(tmp_path, "student", gradients="student.blocks.0.attn")) is None


@pytest.mark.parametrize("suffix", [in_training, in_validation])
def test_without_names_training_in_eval_mode_stays_untold(tmp_path: Path, suffix: object) -> None:
    value = marked("found/eval_graph", GptMarks(suffix))  # type: ignore[arg-type]
    finding = told(load(vram(tmp_path / "a.vram", value)))
    assert (finding is None) == (suffix is in_training)
    assert finding is None or "never runs" in finding.title


@pytest.mark.parametrize(("others", "verdict"), [([], "possible"), (["student"], "likely")])
def test_a_first_step_may_be_training_in_eval_mode(
    tmp_path: Path, others: list[str], verdict: str
) -> None:
    """Frozen statistics: where no other model is to be trained, the advice is under a condition."""
    value = marked("found/eval_graph", GptMarks(in_training))
    trace = value["device_traces"][0]
    marks = [number for number, event in enumerate(trace) if event["user_metadata"]]
    last = next(n for n in marks if "model.head" in trace[n]["user_metadata"])
    failure = {**trace[last], "action": "oom", "size": 1 << 40, "device_free": 0}
    value["device_traces"][0] = [*trace[marks[0] : last], failure]
    del value["segments"]
    roots = ["model", *others]
    names = [named(n, f"{root}.blocks.0.attn.w", "parameter") for n, root in enumerate(roots)]
    finding = told(load(vram(tmp_path / "a.vram", value, names={"tensors": names})))
    assert finding is not None
    assert finding.verdict == verdict
    assert ("if no backward() follows" in (finding.fix or "")) == (verdict == "possible")
