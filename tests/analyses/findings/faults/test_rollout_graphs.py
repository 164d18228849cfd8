"""A rollout that keeps its graph, beside passes that look alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/ppo.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "input": ((USER, 20, "forward"), CALL, (USER, 40, "act")),
    "layer": ((USER, 21, "forward"), CALL, (USER, 20, "forward"), CALL, (USER, 40, "act")),
    "other": ((USER, 22, "forward"), CALL, (USER, 41, "imagine")),
    "loss": ((f"{TORCH}/nn/functional.py", 3500, "cross_entropy"), (USER, 50, "step")),
}


def acts(run: MadeRun, size: int, *, module: str = "agent{}") -> None:
    """One pass through two layers."""
    run.asks("input", size, module=module.format(""))
    for layer in range(2):
        run.asks("layer", size, module=module.format(f".conv.{layer}"))


def told(
    folder: Path,
    passes: int,
    *,
    last: int = 40,
    other: int = 20,
    module: str = "agent{}",
    part: str = "",
) -> Finding | None:
    """What is told where the pass of an update fails after so many."""
    run = MadeRun(FRAMES)
    run.asks("weights", other, name="agent.weight", kind="parameter", use="stepped")
    for _ in range(passes):
        acts(run, 10, module=module)
        if part:
            run.asks(part, 10, module="world" if part == "other" else module.format(""))
    run.asks("input", last, module="agent")
    return finding_of(run.fails("layer", 60, folder), "rollout_graphs")


def test_a_rollout_and_its_update(tmp_path: Path) -> None:
    finding = told(tmp_path, 10)
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == 10 * 3 * 10 * MIB
    assert "10 passes" in finding.title
    assert "torch.no_grad()" in (finding.fix or "")


@pytest.mark.parametrize(
    ("passes", "change"),
    [
        (7, {}),
        (10, {"last": 10}),  # the rollout goes on, or time steps do
        (10, {"last": 5}),  # the last part of a whole
        (10, {"part": "other"}),  # a world model, which the gradients go through
        (10, {"other": 900}),
        (10, {"module": "agent{} [no grad]"}),
        (10, {"part": "loss"}),
    ],
)
def test_what_is_no_rollout(tmp_path: Path, passes: int, change: dict[str, object]) -> None:
    assert told(tmp_path, passes, **change) is None  # type: ignore[arg-type]
