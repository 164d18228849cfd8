"""Parameters that are not trained and that LBFGS or another optimizer keeps much for, beside healthy ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/probe.py"
SOLVE: Frame = (USER, 88, "fit_head")
LBFGS = f"{TORCH}/optim/lbfgs.py"
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 14, "main"),),
    "gather": ((LBFGS, 300, "_gather_flat_grad"), (LBFGS, 360, "step"), SOLVE),
    "pairs": ((LBFGS, 404, "step"), SOLVE),
    "closure": ((USER, 80, "closure"), (LBFGS, 478, "step"), SOLVE),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 82, "closure"), SOLVE),
    "own": ((USER, 90, "direction"), SOLVE),
    "adagrad": ((f"{TORCH}/optim/adagrad.py", 60, "__init__"), (USER, 70, "main")),
    "adam": ((f"{TORCH}/optim/adam.py", 300, "step"), (USER, 71, "main")),
}


def probe(
    run: MadeRun, *, frozen: bool = False, head: str = "model.head", gradients: bool = True
) -> None:
    """A backbone of 96 MiB and a head of 4."""
    for layer in range(2):
        name = f"model.backbone.{layer}.weight"
        run.asks("weights", 48, name=name, kind="parameter", use="stepped", frozen=frozen)
    run.asks("weights", 4, name=f"{head}.weight", kind="parameter", use="stepped")
    if gradients:
        run.asks("backward", 4, name=f"grad[{head}.weight]", kind="gradient")


@pytest.mark.parametrize(
    ("part", "frozen", "gradients", "is_told"),
    [
        ("pairs", False, True, True),
        ("gather", False, True, True),
        ("pairs", True, True, True),
        ("closure", True, False, True),
        ("closure", False, False, False),  # all gradients are still to come
        ("closure", False, True, False),
        ("backward", False, True, False),  # those of the first layers come last
    ],
)
def test_vectors_for_a_frozen_backbone(
    tmp_path: Path, part: str, *, frozen: bool, gradients: bool, is_told: bool
) -> None:
    run = MadeRun(FRAMES)
    probe(run, frozen=frozen, gradients=gradients)
    for _ in range(6):
        run.asks("pairs", 100)
    run.asks("gather", 100)
    answer = run.fails(part, 60, tmp_path)
    finding = finding_of(answer, "frozen_in_optimizer")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.verdict == "likely"
        assert finding.bytes == 7 * 96 * MIB
        assert finding.place is not None
        assert finding.place.line == 88
        assert "model.head.parameters(), or [p for p in" in (finding.fix or "")
        assert finding_of(answer, "optimizer_state") is None


@pytest.mark.parametrize(
    ("part", "vector_mib"),
    [
        ("pairs", 4),  # the head's alone
        ("own", 100),  # vectors of the program
    ],
)
def test_vectors_of_something_else(tmp_path: Path, part: str, vector_mib: int) -> None:
    run = MadeRun(FRAMES)
    probe(run, frozen=True)
    for _ in range(40):
        run.asks(part, vector_mib)
    assert finding_of(run.fails("pairs", 60, tmp_path), "frozen_in_optimizer") is None


def test_all_parameters_are_trained(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    run.asks("weights", 100, name="model.net.weight", kind="parameter", use="stepped")
    run.asks("backward", 100, name="grad[model.net.weight]", kind="gradient")
    for _ in range(8):
        run.asks("pairs", 100)
    assert finding_of(run.fails("pairs", 60, tmp_path), "frozen_in_optimizer") is None


def test_one_trained_layer_of_a_module_has_no_name_of_its_own(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    probe(run, frozen=True, head="model.backbone.1.norm")
    for _ in range(8):
        run.asks("pairs", 100)
    finding = finding_of(run.fails("pairs", 60, tmp_path), "frozen_in_optimizer")
    assert finding is not None
    assert "[p for p in model.parameters() if p.requires_grad]" in (finding.fix or "")


@pytest.mark.parametrize(
    ("part", "state", "optimizer", "frozen", "verdict"),
    [
        ("adagrad", "sum", "optimizer", True, "likely"),
        ("adam", "exp_avg", "optimizer", True, "possible"),
        ("adagrad", "sum", "optimizer", False, None),
        ("adam", "exp_avg", "opt_d", True, None),  # a critic's, frozen for the generator's turn
    ],
)
def test_states_of_frozen_parameters(
    tmp_path: Path, part: str, state: str, optimizer: str, verdict: str | None, *, frozen: bool
) -> None:
    run = MadeRun(FRAMES)
    probe(run, frozen=frozen)
    for layer in range(2):
        name = f"{optimizer}.{state}[model.backbone.{layer}.weight]"
        run.asks(part, 48, name=name, kind="optimizer_state")
    run.asks(part, 4, name=f"optimizer.{state}[model.head.weight]", kind="optimizer_state")
    finding = finding_of(run.fails("adam", 60, tmp_path), "frozen_in_optimizer")
    assert (None if finding is None else finding.verdict) == verdict
    if finding is not None:
        assert finding.bytes == 96 * MIB
