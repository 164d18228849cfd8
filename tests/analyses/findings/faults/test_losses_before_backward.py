"""Losses that are added up before one backward pass, beside programs that look alike: one loss of several
encodings, states that go from pass to pass, passes of an evaluation.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, MadeRun, finding_of
from vramlens.analyses.explanation import Explanation
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/train.py"
FUNCTIONAL = f"{TORCH}/nn/functional.py"
LOSS = "cross_entropy"


def made(loss_file: str = FUNCTIONAL, loss: str = LOSS) -> MadeRun:
    run = MadeRun(
        {
            "weights": ((f"{TORCH}/nn/modules/module.py", 900, "_apply"),),
            "data": ((USER, 5, "load"),),
            "layer": (
                (f"{TORCH}/nn/modules/linear.py", 134, "forward"),
                (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
                (USER, 20, "step"),
            ),
            "loss": ((loss_file, 3504, loss), (USER, 25, "step")),
            "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 30, "step")),
            "derivative": ((f"{TORCH}/autograd/__init__.py", 500, "grad"), (USER, 31, "step")),
        }
    )
    run.asks("weights", 100, name="model.a.weight", kind="parameter", use="stepped")
    return run


def forward(
    run: MadeRun, *, mib: float = 200, data: float = 2, mark: str = "", output: str = ""
) -> list[int]:
    """A forward pass that keeps so much, half of it as its output."""
    run.asks("data", data)
    first = run.asks("layer", mib / 2, module=f"model.a{mark}")
    return [first, run.asks("layer", mib / 2, module=f"model.b{mark}", name=output)]


def with_losses(run: MadeRun, count: int, *, mib: float = 200, data: float = 2) -> list[int]:
    """As many forward passes with a loss each."""
    kept = []
    for _ in range(count):
        kept += forward(run, mib=mib, data=data)
        run.asks("loss", 1 / 2048, name="list[0]")
    return kept


def fault(run: MadeRun, folder: Path) -> Finding | None:
    """What is told where a forward pass fails at its second layer."""
    run.asks("data", 2)
    run.asks("layer", 10, module="model.a")
    return told(run.fails("layer", 60, folder))


def told(answer: Explanation) -> Finding | None:
    return finding_of(answer, "losses_before_backward")


def test_losses_that_one_backward_pass_is_to_follow(tmp_path: Path) -> None:
    run = made()
    with_losses(run, 4)
    finding = fault(run, tmp_path)
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == (4 * 200 - 100) * MIB + 4 * 512  # gradients are to come
    assert "4 forward passes" in finding.title
    assert finding.place is not None
    assert finding.place.line == 25
    assert "call backward() on each loss" in (finding.fix or "")


def test_gradients_that_are_there_are_not_to_come(tmp_path: Path) -> None:
    run = made()
    run.asks("backward", 100, name="grad[model.a.weight]", kind="gradient")
    with_losses(run, 4)
    finding = fault(run, tmp_path)
    assert finding is not None
    assert finding.bytes == 4 * 200 * MIB + 4 * 512


def test_it_stands_in_the_place_of_activations(tmp_path: Path) -> None:
    run = made()
    with_losses(run, 4)
    run.asks("layer", 10, module="model.a")
    answer = run.fails("layer", 60, tmp_path)
    assert told(answer) is not None
    assert "activations" not in {finding.id for finding in answer.findings}


@pytest.mark.parametrize(
    ("file", "function", "is_loss"),
    [
        (FUNCTIONAL, "mse_loss", True),
        (FUNCTIONAL, "ctc_loss", True),
        (FUNCTIONAL, "kl_div", True),
        (FUNCTIONAL, "binary_cross_entropy_with_logits", True),
        (FUNCTIONAL, "binary_cross_entropy", True),
        (f"{TORCH}/nn/modules/loss.py", "forward", True),
        (FUNCTIONAL, "log_softmax", False),
        (USER, "cross_entropy", False),
        (USER, "mse_loss", False),
    ],
)
def test_what_a_loss_is(tmp_path: Path, file: str, function: str, is_loss: bool) -> None:
    run = made(file, function)
    with_losses(run, 4)
    assert (fault(run, tmp_path) is not None) == is_loss


@pytest.mark.parametrize(("losses", "is_told"), [(1, False), (2, True)])
def test_two_views_of_a_sample_are_usual(tmp_path: Path, losses: int, is_told: bool) -> None:
    run = made()
    with_losses(run, losses, mib=400)
    assert (fault(run, tmp_path) is not None) == is_told


def test_a_loss_that_compares_several_encodings_needs_them_all(tmp_path: Path) -> None:
    run = made()
    for _ in range(3):
        forward(run)
    run.asks("loss", 1)
    assert fault(run, tmp_path) is None


def test_each_pass_has_a_loss_of_its_own(tmp_path: Path) -> None:
    run = made()
    with_losses(run, 2)
    forward(run)
    with_losses(run, 2)
    assert fault(run, tmp_path) is None


@pytest.mark.parametrize(("mib", "is_told"), [(40, False), (60, True)])
def test_time_steps_of_a_recurrent_model_are_many_and_small(
    tmp_path: Path, mib: int, is_told: bool
) -> None:
    """Of 996 MiB and more in use, 5% are 50 MiB and more."""
    run = made()
    with_losses(run, 4, mib=200)
    with_losses(run, 1, mib=mib)
    assert (fault(run, tmp_path) is not None) == is_told


def test_many_time_steps(tmp_path: Path) -> None:
    run = made()
    with_losses(run, 40, mib=20)
    assert fault(run, tmp_path) is None


@pytest.mark.parametrize(("other", "is_told"), [(420, True), (500, False)])
def test_the_passes_are_most_of_what_is_in_use(tmp_path: Path, other: int, is_told: bool) -> None:
    """With the weights and the pass under way, 115 MiB and more are none of theirs."""
    run = made()
    run.asks("data", other)
    with_losses(run, 3)
    assert (fault(run, tmp_path) is not None) == is_told


# What goes from pass to pass


@pytest.mark.parametrize(("size_bytes", "is_told"), [(512, True), (513, False)])
def test_a_state_that_the_program_holds_goes_on(
    tmp_path: Path, size_bytes: int, is_told: bool
) -> None:
    run = made()
    with_losses(run, 2)
    forward(run)
    run.asks("layer", size_bytes / MIB, module="model.b", name="inner.args[1][0]")
    run.asks("loss", 1)
    assert (fault(run, tmp_path) is not None) == is_told


def test_a_pipelines_outputs_wait_for_passes_of_their_own(tmp_path: Path) -> None:
    run = made()
    for number in range(4):
        forward(run, output=f"Stage.outputs[{number}]")
        run.asks("loss", 1)
    assert fault(run, tmp_path) is None


@pytest.mark.parametrize(("data", "is_told"), [(99, True), (100, False), (400, False), (401, True)])
def test_an_input_may_have_the_last_output_in_it(tmp_path: Path, data: int, is_told: bool) -> None:
    run = made()
    with_losses(run, 2)
    with_losses(run, 1, data=data)
    assert (fault(run, tmp_path) is not None) == is_told


def test_without_names_nobody_knows_what_goes_on(tmp_path: Path) -> None:
    run = made()
    with_losses(run, 4)
    run.names.clear()
    assert fault(run, tmp_path) is None


# What is usual


def trains(run: MadeRun, passes: int, *, call: str = "backward") -> None:
    """A step whose backward pass goes through so many forward passes."""
    kept = with_losses(run, passes)
    gradient = run.asks(call, 20)
    run.frees(*kept)
    run.frees(gradient)


@pytest.mark.parametrize(("usual", "is_told"), [(1, False), (3, False), (4, True), (5, True)])
def test_more_passes_than_any_backward_pass_used_are_an_evaluation(
    tmp_path: Path, usual: int, is_told: bool
) -> None:
    run = made()
    for _ in range(3):
        trains(run, usual)
    with_losses(run, 3)
    assert (fault(run, tmp_path) is not None) == is_told


def test_what_an_evaluation_is_marked_as(tmp_path: Path) -> None:
    run = made()
    for _ in range(4):
        forward(run, mark=" [eval+grad]")
        run.asks("loss", 1)
    assert fault(run, tmp_path) is None


def test_inner_steps_of_meta_learning(tmp_path: Path) -> None:
    run = made()
    for _ in range(4):
        with_losses(run, 1)
        run.asks("derivative", 50)
    assert fault(run, tmp_path) is None
