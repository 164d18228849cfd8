"""Evaluation with gradients enabled: found by marks, measured by the same program under no_grad."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.recordings import DATA, truth_of
from support.vram_files import GptMarks, in_validation, marked, vram
from vramlens import Recording, load
from vramlens.analyses.finding import Finding


def opened(tmp_path: Path, name: str, marks: GptMarks) -> Recording:
    return load(vram(tmp_path / "a.vram", marked(name, marks)))


def found(recording: Recording) -> dict[str, Finding]:
    return {finding.id: finding for finding in recording.explain().findings}


def test_costs_what_was_measured_and_is_said_once(tmp_path: Path) -> None:
    findings = found(opened(tmp_path, "found/eval_graph", GptMarks(in_validation)))
    measured = truth_of("found/eval_graph")["variant"]["peak_requested_less"]
    finding = findings["eval_with_grad"]
    assert finding.bytes is not None
    assert abs(finding.bytes - measured) <= 0.05 * measured
    assert finding.verdict == "proven"
    assert "unused_graph" not in findings
    assert finding.place is not None
    assert (finding.place.line, finding.place.function) == (395, "validate")
    assert "torch.no_grad()" in (finding.fix or "")
    activations = findings.get("activations")
    assert activations is None or (activations.bytes or 0) + finding.bytes <= 682_621_952


def test_without_marks_the_heuristic_says_it(tmp_path: Path) -> None:
    assert "unused_graph" in found(opened(tmp_path, "found/eval_graph", GptMarks()))


@pytest.mark.parametrize("suffix", ["", " [eval+grad]"])
def test_no_finding_where_it_was_fixed(tmp_path: Path, suffix: str) -> None:
    """Nor where gradients are enabled and no parameter wants one: the marks are the same, and
    nothing is kept.
    """
    marks = GptMarks(lambda functions: suffix if "validate" in functions else "")
    findings = found(opened(tmp_path, "found/eval_graph_fixed", marks))
    assert {"eval_with_grad", "unused_graph"}.isdisjoint(findings)


def test_training_in_eval_mode_is_no_evaluation(tmp_path: Path) -> None:
    """Frozen statistics: the backward pass makes use of what was kept."""
    marks = GptMarks(lambda functions: " [eval+grad]" if "train_step" in functions else "")
    assert "eval_with_grad" not in found(opened(tmp_path, "found/eval_graph", marks))
    assert "eval_with_grad" not in found(
        opened(tmp_path, "found/capacity_oom_device", GptMarks(lambda _: " [eval+grad]"))
    )


def test_a_failure_in_the_first_pass_may_still_have_had_a_backward_pass_to_come(
    tmp_path: Path,
) -> None:
    snapshot = marked("found/eval_graph", GptMarks(in_validation))
    (trace,) = snapshot["device_traces"][:1]
    first = next(
        i for i, event in enumerate(trace) if event["user_metadata"].endswith("[eval+grad]")
    )
    frames = trace[first]["frames"]
    last = next(i for i in range(first, len(trace)) if "model.head" in trace[i]["user_metadata"])
    failure = {"action": "oom", "size": 1 << 30, "device_free": 0, "frames": frames, "time_us": trace[last]["time_us"],
               "stream": 0, "addr": 0, "compile_context": "N/A", "user_metadata": ""}  # fmt: skip
    snapshot["device_traces"][0] = [*trace[first:last], failure]
    del snapshot["segments"]
    findings = found(load(vram(tmp_path / "a.vram", snapshot)))
    assert findings["eval_with_grad"].verdict == "likely"
    assert "when the request failed" in (findings["eval_with_grad"].fix or "")


@pytest.mark.parametrize("name", ["vaegan.cap85", "vocoder_stft.cap95"])
def test_no_evaluation_is_made_up(name: str) -> None:
    """Three backward passes that retain one graph give nothing up, but use it (vaegan). Features
    that a program keeps of passes under no_grad are no graph (vocoder_stft).
    """
    findings = found(load(DATA / f"failures/{name}.vram"))
    assert {"eval_with_grad", "unused_graph", "unconsumed_forward"}.isdisjoint(findings)


def test_a_backward_pass_of_later_training_did_not_use_it() -> None:
    """Pictures sampled with a graph, and kept: what later backward passes of the same model give up
    is another pass's.
    """
    findings = found(load(DATA / "failures/ddpm_preview.cap60.vram"))
    assert "torch.no_grad()" in (findings["unused_graph"].fix or "")
