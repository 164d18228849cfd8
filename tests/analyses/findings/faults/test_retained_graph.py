"""Graphs of many derivatives, beside programs that look alike: training on forces, equations, inner steps
of meta-learning, steps that give their graphs up. (Calls of ``backward``: test_twins.py.)
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/train.py"


def made(use: str = "") -> MadeRun:
    run = MadeRun(
        {
            "weights": ((f"{TORCH}/nn/modules/module.py", 900, "_apply"),),
            "data": ((USER, 5, "load"),),
            "energy": (
                (f"{TORCH}/nn/modules/linear.py", 134, "forward"),
                (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
                (USER, 20, "step"),
            ),
            "derivative": ((f"{TORCH}/autograd/__init__.py", 500, "grad"), (USER, 31, "step")),
            "unseen": (("??", 0, "torch::autograd::Engine::thread_main"),),
            "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 40, "fit")),
            "optimizer": (
                (f"{TORCH}/optim/adamw.py", 600, "_single_tensor_adamw"),
                (f"{TORCH}/optim/optimizer.py", 480, "step"),
                (USER, 41, "fit"),
            ),
        }
    )
    run.asks("weights", 10, name="model.a.weight", kind="parameter", use=use)
    return run


def steps(
    run: MadeRun,
    count: int,
    *,
    energy: int = 4,
    derivative: int = 6,
    part: str = "derivative",
    module: str = "",
) -> list[int]:
    """As many steps, each with a derivative of what it computed."""
    kept = []
    for _ in range(count):
        kept += [run.asks("energy", energy, module=module)] if energy else []
        kept.append(run.asks(part, derivative))
    return kept


def trains(
    run: MadeRun,
    derivatives: int,
    *,
    outer: str = "backward",
    part: str = "derivative",
    module: str = "",
) -> None:
    """A step of training on so many derivatives."""
    kept = steps(run, derivatives, part=part, module=module)
    kept.append(run.asks("energy", 1, module=module))  # and a loss
    gradient = run.asks(outer, 3)
    run.frees(*kept, gradient)


def failed(run: MadeRun, folder: Path, *, part: str = "energy", text: str = "") -> Finding | None:
    """What is told where the next step fails in its forward pass.

    Args:
        part: what asks then.
        text: of the line that computes the energy.
    """
    run.asks(part, 4)
    answer = run.fails(part, 60, folder, source={(USER, 20): text} if text else None)
    return finding_of(answer, "retained_graph")


@pytest.mark.parametrize("part", ["energy", "data"])
def test_a_third_step_that_has_begun_counts(tmp_path: Path, part: str) -> None:
    """Two derivatives may be two penalties; the same calls once more are a third step."""
    run = made()
    steps(run, 2)
    assert (failed(run, tmp_path, part=part) is not None) == (part == "energy")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("delta = (delta + step * grad.sign()).clamp(-eps, eps)", "likely"),
        ("delta = delta + step * grad / grad.norm()", "possible"),
        ("y = torch.sign(x) * torch.log1p(x.abs())", "possible"),
    ],
)
def test_signs_of_derivatives_pass_no_gradient_on(tmp_path: Path, text: str, verdict: str) -> None:
    run = made("stepped")
    steps(run, 4)
    finding = failed(run, tmp_path, text=text)
    assert finding is not None
    assert finding.verdict == verdict


@pytest.mark.parametrize(("count", "is_told"), [(10, False), (11, True)])
def test_a_simulation_without_weights(tmp_path: Path, count: int, is_told: bool) -> None:
    """What is named is no weight: steps of meta-learning may have theirs as plain tensors."""
    run = made()
    run.names.clear()
    run.asks("data", 1, name="Simulation.damping")
    steps(run, count)
    assert (failed(run, tmp_path, part="data") is not None) == is_told


@pytest.mark.parametrize(("count", "is_told"), [(1, False), (3, True), (20, True)])
def test_a_simulation_whose_state_is_not_detached(
    tmp_path: Path, count: int, is_told: bool
) -> None:
    run = made()
    steps(run, count)
    finding = failed(run, tmp_path)
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.verdict == "likely"
        assert finding.bytes == (count - 1) * 10 * MIB  # the last step's graph is needed
        assert f"{count} steps" in finding.title
        assert "call this with create_graph=False" in (finding.fix or "")
        assert "detach what goes from one step to the next (positions" in (finding.fix or "")
        assert finding.place is not None
        assert finding.place.line == 20


@pytest.mark.parametrize(
    ("tasks", "inner", "is_told"),
    [
        (1, 10, False),
        (2, 5, False),  # the second may be the last
        (3, 5, True),
        (3, 1, False),  # nobody knows what comes between two of one task
    ],
)
def test_inner_steps_of_meta_learning(
    tmp_path: Path, tasks: int, inner: int, is_told: bool
) -> None:
    """Each derives by the weights, and each task's own loss comes after its last."""
    run = made("stepped")
    for _ in range(tasks):
        steps(run, inner, derivative=10)
        for _ in range(4):
            run.asks("energy", 2)
    finding = failed(run, tmp_path)
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.verdict == "likely"
        assert "call backward() on each task's loss" in (finding.fix or "")


def test_inner_steps_that_differ_are_no_tasks(tmp_path: Path) -> None:
    run = made("stepped")
    for inner in (5, 2, 4, 3):
        steps(run, inner, derivative=10)
        for _ in range(4):
            run.asks("energy", 2)
    assert failed(run, tmp_path) is None


@pytest.mark.parametrize(("count", "is_told"), [(5, False), (6, True)])
def test_errors_of_an_evaluation_that_are_summed(tmp_path: Path, count: int, is_told: bool) -> None:
    """Training has shown that one derivative goes with a step, for its forces."""
    run = made("stepped")
    trains(run, 1)
    trains(run, 1)
    steps(run, count)
    finding = failed(run, tmp_path)
    assert (finding is not None) == is_told
    if finding is not None:
        assert "total += error.item()" in (finding.fix or "")


@pytest.mark.parametrize(("is_trained", "is_told"), [(True, True), (False, False)])
def test_derivatives_that_no_stack_shows(tmp_path: Path, is_trained: bool, is_told: bool) -> None:
    """``autograd.grad`` that is given the gradient of its outputs asks for nothing itself: where backward
    passes show their calls, it is no backward pass.
    """
    run = made("stepped")
    for _ in range(2 if is_trained else 0):
        trains(run, 1, part="unseen")
    steps(run, 8, part="unseen")
    assert (failed(run, tmp_path) is not None) == is_told


@pytest.mark.parametrize(
    ("count", "mode", "beside", "is_told"),
    [
        (3, " [eval+grad]", "", True),
        (1, " [eval+grad]", "", False),
        (5, "", "", False),
        (3, " [eval+grad]", "blur", True),  # which was never trained, and has no mode of use
        (3, " [eval+grad]", "model.b", False),
        (3, " [eval+grad]", "sampler.net", False),  # which begins to be trained
    ],
)
def test_derivatives_of_a_model_that_is_evaluated(
    tmp_path: Path, count: int, mode: str, beside: str, is_told: bool
) -> None:
    """A rendering asks for normals, as training did for its penalty; nobody trains on them."""
    run = made("stepped")
    run.frees(run.asks("energy", 1, module="model.b"))
    run.asks("weights", 1, name="sampler.net.weight", kind="parameter")
    trains(run, 1, module="model.a")
    trains(run, 1, module="model.a")
    if beside:
        run.frees(run.asks("energy", 1, module=beside))
    steps(run, count, module=f"model.a{mode}")
    finding = failed(run, tmp_path)
    assert (finding is not None) == is_told
    if finding is not None:
        assert "create_graph=self.training" in (finding.fix or "")


@pytest.mark.parametrize("outer", ["backward", "optimizer"])
@pytest.mark.parametrize(("usual", "is_told"), [(1, True), (6, True), (7, False), (28, False)])
def test_training_through_as_many_steps(
    tmp_path: Path, outer: str, usual: int, is_told: bool
) -> None:
    run = made("stepped")
    trains(run, usual, outer=outer)
    trains(run, 1, outer=outer)
    steps(run, 28 if usual > 6 else 25)
    assert (failed(run, tmp_path) is not None) == is_told


@pytest.mark.parametrize(("derivative", "verdict"), [(6, "possible"), (10, None)])
def test_a_first_step_of_training_may_go_through_all_of_them(
    tmp_path: Path, derivative: int, verdict: str | None
) -> None:
    """By an input, as a sampler does that trains nothing; or by the weights, 10 MiB."""
    run = made("stepped")
    steps(run, 30, derivative=derivative)
    finding = failed(run, tmp_path)
    assert (None if finding is None else finding.verdict) == verdict


def test_without_names_nobody_knows_whether_it_trains(tmp_path: Path) -> None:
    run = made()
    steps(run, 30)
    run.names.clear()
    assert failed(run, tmp_path) is None


def test_many_derivatives_of_one_result(tmp_path: Path) -> None:
    """An equation's residual asks for those of each output by each coordinate."""
    run = made()
    run.asks("energy", 100)
    steps(run, 30, energy=0)
    assert failed(run, tmp_path) is None


@pytest.mark.parametrize(("energy", "is_told"), [(1, False), (2, True)])
def test_what_comes_between_derivatives_of_one_result(
    tmp_path: Path, energy: int, is_told: bool
) -> None:
    """A tenth of 11 MiB is more than 1, and one of 12 is less than 2."""
    run = made()
    steps(run, 30, energy=energy, derivative=10)
    assert (failed(run, tmp_path) is not None) == is_told


@pytest.mark.parametrize(("other", "is_told"), [(420, True), (480, False)])
def test_graphs_that_are_little_of_what_is_in_use(
    tmp_path: Path, other: int, is_told: bool
) -> None:
    run = made()
    run.asks("data", other, name="Data.rows")
    steps(run, 30)
    assert (failed(run, tmp_path) is not None) == is_told


@pytest.mark.parametrize(("given_up", "is_told"), [(4, True), (7, False)])
def test_steps_that_give_most_of_their_graph_up(
    tmp_path: Path, given_up: int, is_told: bool
) -> None:
    """A derivative without create_graph=True leaves results alone."""
    run = made()
    for _ in range(30):
        used = run.asks("energy", given_up)
        run.asks("energy", 5)
        run.asks("derivative", 5)
        run.frees(used)
    assert (failed(run, tmp_path) is not None) == is_told


@pytest.mark.parametrize(("count", "is_told"), [(1, False), (3, True)])
def test_a_state_goes_on_though_each_derivative_freed_its_graph(
    tmp_path: Path, count: int, *, is_told: bool
) -> None:
    """A solver: what it computes of a derivative stays, and nothing that the derivative made."""
    run = made()
    run.names.clear()
    run.asks("data", 1, name="Scan.maps")
    for _ in range(count):
        run.asks("energy", 4)
        run.frees(run.asks("derivative", 6))
    finding = failed(run, tmp_path)
    assert (finding is not None) == is_told
    if finding is not None:
        assert "x = x.detach()" in (finding.fix or "")
        assert "create_graph" not in (finding.fix or "")


@pytest.mark.parametrize(
    ("mode", "usual", "is_told"),
    [
        ("self.training", 1, True),
        ("True", 1, False),
        ("self.training", 3, False),  # several molecules a step
    ],
)
def test_a_simulation_in_training_mode(
    tmp_path: Path, mode: str, usual: int, *, is_told: bool
) -> None:
    text = f"grad, = torch.autograd.grad(energy, x, create_graph={mode})"
    run = made("stepped")
    for _ in range(2):
        trains(run, usual)
    steps(run, 3)
    finding = failed(run, tmp_path, text=text)
    assert (finding is not None) == is_told
    if finding is not None:
        assert "call model.eval()" in (finding.fix or "")
