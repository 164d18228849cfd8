"""What lists keep of the turns of a loop that has no model, and what functions of earlier calls collect."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/sample.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "data": ((USER, 5, "load"),),
    "work": ((USER, 20, "energy"),),
    "state": ((USER, 30, "transition"),),
    "gradient": ((f"{TORCH}/autograd/__init__.py", 500, "grad"), (USER, 31, "transition")),
    "collect": ((USER, 40, "__call__"),),
    "layer": (
        (USER, 50, "forward"),
        (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
        (USER, 60, "validation_step"),
    ),
    "train": (
        (USER, 50, "forward"),
        (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
        (USER, 59, "main"),
    ),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 61, "main")),
    "hook": (
        (USER, 70, "keep"),
        (f"{TORCH}/nn/modules/module.py", 1750, "_call_impl"),
        (USER, 71, "features"),
    ),
    "weights": ((USER, 2, "build"),),
    "clone": ((USER, 80, "fisher"),),
}


def sampled(folder: Path, *, beside: int = 0) -> Finding | None:
    """What is told of a chain's states, each with so many MiB beside it."""
    run = MadeRun(FRAMES)
    run.asks("data", 30)
    for number in range(40):
        work = [run.asks("work", 7), run.asks("work", 3), run.asks("gradient", 2)]
        run.asks("state", 10, name=f"list[{number}]")
        if beside:
            run.asks("work", beside)
        run.frees(*work)
    return finding_of(run.fails("work", 20, folder), "kept_in_store")


def test_the_states_of_a_chain_are_results(tmp_path: Path) -> None:
    finding = sampled(tmp_path)
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.title.startswith("40 tensors in a list hold 400.00 MiB")
    assert "on the CPU" in (finding.fix or "")


@pytest.mark.parametrize(("beside", "verdict"), [(5, "likely"), (6, "possible")])
def test_a_turn_that_keeps_much_beside_its_state(tmp_path: Path, beside: int, verdict: str) -> None:
    """As a graph does."""
    finding = sampled(tmp_path, beside=beside)
    assert finding is not None
    assert finding.verdict == verdict


@pytest.mark.parametrize(("turns", "verdict"), [(40, "likely"), (20, "possible")])
def test_what_a_sampler_keeps_between_the_passes_of_a_model(
    tmp_path: Path, turns: int, verdict: str
) -> None:
    """One result a pass, which no module made: a history that nobody cuts."""
    run = MadeRun(FRAMES)
    run.asks("data", 30)
    for number in range(turns):
        for layer in ("first", "second"):
            run.frees(run.asks("work", 5, module=f"model.{layer} [no grad]"))
        run.asks("state", 10, name=f"Sampler.history[{number}]")
    finding = finding_of(run.fails("work", 20, tmp_path), "kept_in_store")
    assert finding is not None
    assert finding.verdict == verdict
    assert "only what you need of it" in (finding.fix or "")


@pytest.mark.parametrize(
    ("text", "count", "is_told"),
    [
        ("return frames.to(device).float() / 255.0", 40, True),
        ("obs = obs.float().div_(255)", 40, True),
        ("x = x * (1 / 255)", 40, True),
        ("return frames.to(device).float()", 40, False),
        ("return frames.float() / 2550", 40, False),
        ("return frames.to(device).half() / 255", 40, False),
        ("return frames.to(torch.bfloat16) / 255", 40, False),
        ("return frames.to(device).float() / 255.0", 12, False),
    ],
)
def test_images_that_are_kept_as_float32(
    tmp_path: Path, text: str, count: int, *, is_told: bool
) -> None:
    """Of a replay memory: their bytes are a fourth."""
    run = MadeRun(FRAMES)
    run.asks("data", 30)
    for number in range(count):
        run.asks("state", 10, name=f"Replay.memory[{number}]")
    file, line, _ = FRAMES["state"][0]
    answer = run.fails("work", 20, tmp_path, source={(file, line): text})
    finding = finding_of(answer, "float_images")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == 300 * MIB
        assert finding_of(answer, "kept_in_store") is None


def collected(folder: Path, keys: Sequence[int]) -> Finding | None:
    """What is told of entries of lists that a function made by calls of another one collects."""
    run = MadeRun(FRAMES)
    run.asks("data", 100)
    for key in keys:
        run.asks("collect", 10, name=f"Maps.__call__.<locals>.keep.maps[{key}]")
    return finding_of(run.fails("data", 20, folder), "kept_in_store")


def test_functions_of_earlier_calls_go_on_collecting(tmp_path: Path) -> None:
    finding = collected(tmp_path, (0, 1, 2, 3, 0, 1, 2, 0, 1))
    assert finding is not None
    assert finding.verdict == "likely"
    assert (finding.fix or "").startswith("where Maps.__call__() registers a function")
    assert finding.evidence[0].startswith("functions that earlier calls of Maps.__call__() made")


def test_one_function_that_collects_may_be_meant(tmp_path: Path) -> None:
    finding = collected(tmp_path, range(9))
    assert finding is not None
    assert finding.verdict == "possible"
    assert "on the CPU" in (finding.fix or "")


@pytest.mark.parametrize(
    ("batches", "mark", "passes", "verdict"),
    [
        (5, "model [no grad]", 4, "likely"),
        (5, "model [no grad]", 2, "likely"),
        (5, "model [no grad]", 1, "possible"),  # rollouts of a replay buffer
        (2, "model [no grad]", 4, "possible"),
        (5, "model", 4, "possible"),
    ],
)
def test_results_of_evaluations_that_ended(
    tmp_path: Path, batches: int, mark: str, passes: int, verdict: str
) -> None:
    run = MadeRun(FRAMES)
    run.asks("data", 30)
    for number in range(5 * batches):
        for _ in range(passes * (number % batches == 0)):
            run.frees(run.asks("backward", 2))
            run.frees(run.asks("work", 1))
        run.asks("layer", 20, name=f"model.validation_step_outputs[{number}]", module=mark)
    finding = finding_of(run.fails("layer", 20, tmp_path), "kept_in_store")
    assert finding is not None
    assert finding.verdict == verdict
    assert ("model.validation_step_outputs.clear()" in (finding.fix or "")) == (verdict == "likely")


def test_an_evaluation_whose_result_is_the_first_request_after_training(tmp_path: Path) -> None:
    """A backward pass is over where something else asks: that comes after the pass."""
    run = MadeRun(FRAMES)
    run.asks("data", 30)
    for number in range(25):
        for _ in range(2 * (number % 5 == 0)):
            run.frees(run.asks("work", 1))
            run.frees(run.asks("backward", 2))
        name = f"model.validation_step_outputs[{number}]"
        run.asks("layer", 20, name=name, module="model [no grad]")
    finding = finding_of(run.fails("layer", 20, tmp_path), "kept_in_store")
    assert finding is not None
    assert finding.verdict == "likely"


@pytest.mark.parametrize(("passes", "verdict"), [(3, "possible"), (4, "likely")])
def test_results_that_evaluations_computed_outside_of_a_model(
    tmp_path: Path, passes: int, verdict: str
) -> None:
    """As a rollout's returns are, which the few passes of an update follow."""
    run = MadeRun(FRAMES)
    run.asks("data", 30)
    for number in range(15):
        for _ in range(passes * (number % 5 == 0)):
            activation = run.asks("train", 5, module="model")
            gradient = run.asks("backward", 2)
            run.frees(activation, gradient)
            run.frees(run.asks("work", 1))
        run.asks("layer", 20, name=f"Rollout.returns[{number}]")
    finding = finding_of(run.fails("layer", 20, tmp_path), "kept_in_store")
    assert finding is not None
    assert finding.verdict == verdict
    assert ("Rollout.returns.clear()" in (finding.fix or "")) == (verdict == "likely")


@pytest.mark.parametrize(
    ("part", "objects", "is_told"),
    [("hook", 6, True), ("hook", 2, False), ("layer", 6, False)],
)
def test_objects_that_hooks_of_earlier_calls_fill(
    tmp_path: Path, part: str, objects: int, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 10, name="model.body.weight", kind="parameter")
    for _ in range(objects):
        for level in range(4):
            run.asks(part, 20, name=f"LayerTaps.maps['stages.{level}']", module=f"model.{level}")
    finding = finding_of(run.fails("layer", 50, tmp_path), "kept_in_store")
    assert finding is not None
    assert ("handle.remove()" in (finding.fix or "")) == is_told


@pytest.mark.parametrize(
    ("text", "passes", "is_told"),
    [
        ("scores[name].append(p.grad.clone())", 6, True),
        ("scores[name].append(p.grad.clone())", 2, False),
        ("scores[name].append(p.detach().clone())", 6, False),
    ],
)
def test_gradients_of_every_pass_in_a_list_for_each_parameter(
    tmp_path: Path, text: str, passes: int, *, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    for layer in range(4):
        run.asks("weights", 10, name=f"model.body.{layer}.weight", kind="parameter")
    for number in range(passes):
        for layer in range(4):
            run.asks("clone", 10, name=f"dict['body.{layer}.weight'][{number}]")
    answer = run.fails("clone", 10, tmp_path, source={(USER, 80): text})
    finding = finding_of(answer, "kept_in_store")
    assert finding is not None
    assert ("its gradient of every backward pass" in "".join(finding.evidence)) == is_told


@pytest.mark.parametrize(("others", "count"), [(200, 900), (100, 300)])
def test_smaller_entries_have_no_name_where_as_many_have_one_as_can(
    tmp_path: Path, others: int, count: int
) -> None:
    """A recording names the 500 largest tensors that are no model's."""
    run = MadeRun(FRAMES)
    for number in range(300):
        run.asks("collect", 2, name=f"Server.caches[tuple][{number}]")
    for number in range(others):
        run.asks("work", 2, name=f"float32[{number}, 2] tensor")
    for _ in range(600):
        run.asks("collect", 1)
    finding = finding_of(run.fails("work", 20, tmp_path), "kept_in_store")
    assert finding is not None
    assert finding.title.startswith(f"{count} tensors in Server.caches hold")


def test_one_recorder_for_each_layer_is_no_earlier_call(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    for layer in range(12):
        run.asks("hook", 20, name="Recorder.outputs[0]", module=f"model.layers.{layer}")
    finding = finding_of(run.fails("layer", 50, tmp_path), "kept_in_store")
    assert finding is None or "handle.remove()" not in (finding.fix or "")
