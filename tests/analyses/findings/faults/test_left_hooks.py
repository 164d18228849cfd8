"""Hooks that stay on modules with what they were given, and models that calls which have ended keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of

USER = "/home/user/probe.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "record": ((USER, 39, "record"),),
    "model": ((USER, 12, "build"),),
    "forward": ((f"{TORCH}/nn/modules/linear.py", 134, "forward"), (USER, 20, "fit")),
    "backward": ((f"{TORCH}/_tensor.py", 581, "backward"), (USER, 22, "fit")),
    "optimizer": ((f"{TORCH}/optim/adamw.py", 300, "step"), (USER, 23, "fit")),
}


@pytest.mark.parametrize(
    ("name", "count", "is_told"),
    [
        ("model.h.{layer}._forward_hooks[{number}]['source']", 12, True),
        ("model.h.{layer}._forward_pre_hooks[{number}][0]", 12, True),
        ("model.h.{layer}._backward_hooks[{number}].scale", 12, True),
        ("model.h.{layer}._forward_hooks[{number}]['source']", 4, False),  # two on each module
        ("model.h.{layer}._forward_hooks[7]['source']", 12, False),  # one hook that keeps several
        ("model.h.{layer}.cache[{number}]", 12, False),
    ],
)
def test_hooks_of_earlier_calls(tmp_path: Path, name: str, count: int, *, is_told: bool) -> None:
    run = MadeRun(FRAMES)
    run.asks("model", 64, name="model.h.0.weight", kind="parameter")
    for number in range(count):
        run.asks("record", 16, name=name.format(layer=number % 2, number=number))
        run.frees(run.asks("forward", 1, module="model.h.0"))
        run.frees(run.asks("forward", 1, module="model.h.1"))
    finding = finding_of(run.fails("record", 16, tmp_path), "left_hooks")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == count * 16 << 20
        assert finding.evidence[0].startswith("model.h.0 has 6 ")
        assert "handle.remove()" in (finding.fix or "")


def test_hooks_of_one_set_up_are_meant(tmp_path: Path) -> None:
    """Three vectors that steer a model."""
    run = MadeRun(FRAMES)
    run.asks("model", 64, name="model.h.0.weight", kind="parameter")
    for number in range(6):
        run.asks("record", 32, name=f"model.h.0._forward_hooks[{number}].vector")
    for _ in range(8):
        run.frees(run.asks("forward", 1, module="model.h.0"))
    assert finding_of(run.fails("forward", 16, tmp_path), "left_hooks") is None


@pytest.mark.parametrize(
    ("keeper", "newest", "is_told"),
    [
        ("local of objective(), call 2", "local of objective()", True),
        ("local of objective()", "local of objective()", False),  # of the call that runs
        ("", "local of objective()", False),
        ("lru_cache of Net.embed()", "local of objective()", False),
        ("local of generator trial()", "local of objective()", False),
    ],
)
def test_models_that_calls_keep(tmp_path: Path, keeper: str, newest: str, *, is_told: bool) -> None:
    run = MadeRun(FRAMES)
    for name, kept_by in (("Net", keeper), ("model", newest)):
        for layer in range(4):
            parameter = f"{name}.{layer}.weight"
            run.asks("model", 32, name=parameter, kind="parameter", kept_by=kept_by)
            run.asks("backward", 32, name=f"grad[{parameter}]", kind="gradient")
        output = run.asks("forward", 4, module=f"{name}.3")
        run.frees(output)
    finding = finding_of(run.fails("forward", 16, tmp_path), "finished_models")
    assert finding is not None
    assert ("str(error)" in (finding.fix or "")) == is_told
