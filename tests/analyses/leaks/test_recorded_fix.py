"""What to do about a leak, in terms of the line that asked for it."""

from __future__ import annotations

import pytest

from analyses.leaks.test_leaks import growing
from support.leak_programs import LEAK_LINE, MAIN, Run, at
from support.oracle import MIB
from support.recordings import DATA
from vramlens import load
from vramlens.analyses.leaks.recorded_fix import BESIDE_PASS, OF_PASS, wide_scalar, with_fix
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.leaks.recorded_leaks import leaks_of_trace
from vramlens.ground.verdict import Verdict
from vramlens.leak.claim import claim_of, notes_of
from vramlens.trace import Frame

FUNCTIONAL = "/usr/lib/python3.12/site-packages/torch/nn/functional.py"


def test_losses_whose_scalar_keeps_all_errors() -> None:
    mine = Frame("train.py", 9, "main")
    assert wide_scalar([Frame(FUNCTIONAL, 3800, "mse_loss"), mine]) == "F.mse_loss"
    assert wide_scalar([Frame(FUNCTIONAL, 3400, "cross_entropy"), mine]) == ""
    assert wide_scalar([Frame("train.py", 3, "mse_loss"), mine]) == ""
    assert wide_scalar([]) == ""


@pytest.mark.parametrize(
    ("name", "graph", "words"),
    [
        (
            "Trainer.outputs",
            "",
            "Trainer.outputs keeps what that line allocated: empty or limit it",
        ),
        ("list", "", "a list keeps what that line allocated: empty or limit it"),
        (
            "losses",
            OF_PASS,
            "losses keeps the result of that line: keep `.detach()` or `.item()` of it there",
        ),
        ("", OF_PASS, "find what keeps the result of that line"),
        ("", BESIDE_PASS, "run that line in torch.no_grad() if no backward pass is to go through"),
        ("", "", "If a list, attribute, cache or hook keeps it"),
    ],
)
def test_what_is_known_to_keep_a_leak_is_named(name: str, graph: str, words: str) -> None:
    leak = RecordedLeak(
        verdict=Verdict.LIKELY, kind=None, bytes_per_step=MIB, bytes=9 * MIB, steps=9, kept_in=name
    )
    assert words in (with_fix(leak, graph=graph).fix or "")


def test_what_every_eighth_step_leaves_is_told_for_that_time() -> None:
    run = Run(0)
    run.setup()

    def trial(step: int) -> None:
        if step % 8 == 7:
            run.new(60 * MIB, MAIN, at(LEAK_LINE))

    for step in range(80):
        run.step(trial, step)
    (leak,) = growing(leaks_of_trace(run.trace()))
    assert (leak.every_steps, leak.bytes_per_step) == (8, 60 * MIB // 8)
    assert "about 60.00 MiB every 8 steps" in claim_of(leak, unseen="").headline
    assert "before it runs again" in (leak.advice or "")
    assert "saves 60.00 MiB every 8 steps" in (leak.advice or "")
    assert "per step" not in " ".join(notes_of(leak))


@pytest.mark.parametrize(("name", "is_told"), [("cnn", True), ("running", False)])
def test_an_evaluation_with_gradients_is_to_run_without(name: str, *, is_told: bool) -> None:
    """Its results are small; their graphs are what is kept. A running sum in training is another thing."""
    leaks = leaks_of_trace(load(DATA / "pairs" / f"{name}.vram")).leaks
    largest = max(leaks, key=lambda leak: leak.bytes)
    assert ("torch.no_grad()" in (largest.fix or "")) == is_told
