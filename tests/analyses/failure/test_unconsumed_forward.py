"""Forward passes that no backward pass uses: sampling from a model without ``no_grad``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.made_failures import TORCH, MadeRun, finding_of
from support.recordings import DATA
from support.vram_files import GptMarks, marked, vram
from vramlens import load
from vramlens.analyses.failure.unconsumed_forward import waiting_passes


def events(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize(
    ("passes", "backwards", "verdict"),
    [
        ((10, 30, 50, 51, 52, 53), (20, 40), "likely"),  # trained, then sampled
        ((10, 30, 50), (20, 40), None),  # the next step's forward
        ((1, 2, 3, 4, 20, 21, 22, 23), (10,), None),  # four to a step, and four again
        ((1, 2, 3, 4, 5), (), "possible"),  # sampling, or a solver's first step
        ((1, 2), (), None),  # two views of a batch
    ],
)
def test_more_passes_than_a_backward_ever_used(
    passes: tuple[int, ...], backwards: tuple[int, ...], verdict: str | None
) -> None:
    assert waiting_passes(events(*passes), events(*backwards)).verdict == verdict


@pytest.mark.parametrize("name", ["gpt.cap90", "accumulate.cap80", "ode.cap92", "lora.cap80"])
def test_a_training_step_waits_for_nothing_unusual(name: str) -> None:
    """Nor does a solver's first step, whose states the program itself holds."""
    findings = load(DATA / f"failures/{name}.vram").explain().findings
    assert not any(one.id == "unconsumed_forward" for one in findings)


def test_passes_without_a_graph_wait_for_nothing(tmp_path: Path) -> None:
    """Validation under no_grad, then a training step whose forward pass runs out of memory."""
    snapshot = marked("found/eval_graph_fixed", GptMarks())
    trace = snapshot["device_traces"][0]
    validated = [
        number
        for number, event in enumerate(trace)
        if any(frame["name"] == "validate" for frame in event["frames"])
    ]
    heads = [
        number
        for number, event in enumerate(trace)
        if number > validated[-1] and event["user_metadata"] == "model.head"
    ]
    failed = heads[0]
    failure = trace[failed] | {"action": "oom", "size": 1 << 30, "device_free": 0, "addr": 0}
    snapshot["device_traces"][0] = [*trace[:failed], failure]
    del snapshot["segments"]
    findings = load(vram(tmp_path / "a.vram", snapshot)).explain().findings
    assert not any(one.id == "unconsumed_forward" for one in findings)


@pytest.mark.parametrize(
    ("calls", "use", "verdict"),
    [(5, "", "likely"), (5, "stepped", None), (2, "", None)],
)
def test_results_that_are_made_before_there_is_an_optimizer(
    tmp_path: Path, calls: int, use: str, verdict: str | None
) -> None:
    """Observations that a model with weights simulates, for a fit that comes later: calls of one module, which
    only their requests tell apart.
    """
    call = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
    run = MadeRun(
        {
            "weights": (("/home/user/fit.py", 3, "load"),),
            "first": (
                ("/home/user/fit.py", 10, "forward"),
                call,
                ("/home/user/fit.py", 30, "main"),
            ),
            "second": (
                ("/home/user/fit.py", 11, "forward"),
                call,
                ("/home/user/fit.py", 30, "main"),
            ),
        }
    )
    run.asks("weights", 10, name="Earth.velocity", kind="parameter", use=use)
    for _ in range(calls):
        run.asks("first", 3, module="Solver")
        for _ in range(8):
            run.asks("second", 3, module="Solver")
    finding = finding_of(run.fails("first", 3, tmp_path), "unconsumed_forward")
    assert (finding and finding.verdict) == verdict
    if finding is not None:
        assert finding.title.startswith(f"{calls} forward passes keep")
        assert "has no optimizer" in finding.title


@pytest.mark.parametrize(("line_of_generator", "is_read_later"), [(29, True), (30, False)])
def test_calls_that_run_where_a_generator_is_read(
    tmp_path: Path, line_of_generator: int, *, is_read_later: bool
) -> None:
    """After the block that was to hold for them: what to do says so."""
    file = "/home/user/select.py"
    outer = ((file, line_of_generator, "<genexpr>"), (file, 30, "score"), (file, 40, "main"))
    call = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
    run = MadeRun(
        {
            "weights": ((file, 3, "load"),),
            "first": ((file, 10, "forward"), call, *outer),
            "second": ((file, 11, "forward"), call, *outer),
        }
    )
    run.asks("weights", 10, name="Net.weight", kind="parameter")
    for _ in range(5):
        run.asks("first", 3, module="Net")
        for _ in range(8):
            run.asks("second", 3, module="Net")
    finding = finding_of(run.fails("first", 3, tmp_path), "unconsumed_forward")
    assert finding is not None
    assert ("move /home/user/select.py:30 in score into" in (finding.fix or "")) == is_read_later
