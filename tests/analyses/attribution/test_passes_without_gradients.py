"""What a model computes while gradients are disabled: no backward pass needs it, whatever else trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of

USER = "/home/user/train.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
LINEAR: Frame = (f"{TORCH}/nn/modules/linear.py", 134, "forward")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((f"{TORCH}/nn/modules/module.py", 900, "_apply"),),
    "layer": (LINEAR, CALL, (USER, 20, "forward")),
    "checkpoint": (
        LINEAR,
        CALL,
        (f"{TORCH}/utils/checkpoint.py", 263, "forward"),
        (f"{TORCH}/autograd/function.py", 581, "apply"),
        (USER, 21, "forward"),
    ),
    "softmax": ((USER, 30, "validate"),),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 40, "fit")),
    "optimizer": (
        (f"{TORCH}/optim/adamw.py", 600, "_single_tensor_adamw"),
        (f"{TORCH}/optim/optimizer.py", 480, "step"),
        (USER, 41, "fit"),
    ),
}
WITHOUT = "model [no grad]"


def made() -> MadeRun:
    run = MadeRun(FRAMES)
    run.asks("weights", 100, name="model.a.weight", kind="parameter")
    return run


def trains(run: MadeRun) -> None:
    kept = [run.asks("layer", 40, module="model") for _ in range(4)]
    gradient = run.asks("backward", 100, name="grad[model.a.weight]", kind="gradient")
    run.frees(*kept)
    run.asks("optimizer", 10)
    run.frees(gradient)


@pytest.mark.parametrize(
    ("part", "mark", "is_for_backward"),
    [
        ("layer", "model", True),
        ("layer", WITHOUT, False),
        ("checkpoint", WITHOUT, True),  # runs again in the backward pass, with gradients
    ],
)
def test_activations_are_what_a_backward_pass_needs(
    tmp_path: Path, part: str, mark: str, is_for_backward: bool
) -> None:
    run = made()
    trains(run)
    for _ in range(10):
        run.asks(part, 60, module=mark)
    answer = run.fails(part, 60, tmp_path)
    assert (finding_of(answer, "activations") is not None) == is_for_backward
    assert answer.heap is not None
    assert ("activations" in answer.heap.by_category) == is_for_backward


@pytest.mark.parametrize(("mark", "tells"), [("model", True), (WITHOUT, False)])
def test_a_run_without_gradients_needs_no_optimizer(tmp_path: Path, mark: str, tells: bool) -> None:
    run = made()
    for layer in range(8):
        run.asks("weights", 20, name=f"model.layers.{layer}.weight", kind="parameter")
    for layer in range(5):
        run.asks("layer", 60, module=mark.replace("model", f"model.layers.{layer}"))
    answer = run.fails("layer", 60, tmp_path)
    batch = finding_of(answer, "smaller_batch")
    evidence = " ".join(batch.evidence) + batch.title if batch is not None else ""
    assert ("optimizer" in evidence) == tells


@pytest.mark.parametrize(("mark", "passes", "is_told"), [(WITHOUT, 6, True), (WITHOUT, 4, False)])
def test_results_that_each_pass_leaves_in_a_list(
    tmp_path: Path, mark: str, passes: int, is_told: bool
) -> None:
    """Also where the model did not make them itself."""
    run = made()
    trains(run)
    for _ in range(passes):
        used = [
            run.asks("layer", 20, module=mark),
            run.asks("layer", 30, module=f"model.b{mark[5:]}"),
        ]
        run.asks("softmax", 90, name="list[0]")
        run.frees(*used)
    answer = run.fails("softmax", 90, tmp_path)
    finding = finding_of(answer, "kept_in_store")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.verdict == "likely"
        assert finding.bytes == passes * 90 << 20
        assert "train.py:30" in (finding.fix or "")


@pytest.mark.parametrize(("mark", "is_told"), [("", True), (" [no grad]", False)])
def test_a_check_before_training_waits_for_no_backward_pass(
    tmp_path: Path, mark: str, is_told: bool
) -> None:
    """As Lightning validates a few batches first: a pass begins again, and keeps nothing."""
    run = made()
    for module in ("model.a", "model.b") * 3:
        run.asks("layer", 40, module=f"{module}{mark}")
    run.asks("layer", 40, module="model.a")
    answer = run.fails("layer", 40, tmp_path)
    assert (finding_of(answer, "unconsumed_forward") is not None) == is_told
