"""What training does with parameters, and what that costs: networks that only judge, groups that rest,
lists as long as the parameters.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/train.py"
STEP = "/home/user/lamb.py"
FRAMES = {
    "weights": ((f"{TORCH}/nn/modules/module.py", 900, "_apply"),),
    "layer": (
        (f"{TORCH}/nn/modules/linear.py", 134, "forward"),
        (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"),
        (USER, 20, "step"),
    ),
    "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 30, "step")),
    "first list": ((STEP, 50, "step"),),
    "second list": ((STEP, 51, "step"),),
    "numbers": ((STEP, 52, "step"),),
}
LISTS = {
    (STEP, 50): "m_hat = [m / (1 - b1 ** t) for m in self.m]",
    (STEP, 51): "v_hat = [v / (1 - b2 ** t) for v in self.v]",
}


@pytest.mark.parametrize(("passes", "told_mib"), [(1, None), (2, 200)])
def test_a_network_that_judges_an_output_and_a_target(
    tmp_path: Path, passes: int, told_mib: int | None
) -> None:
    """Gradients go through its pass over the output; the other needs no graph."""
    run = MadeRun(FRAMES)
    for module, use in (("generator", "stepped"), ("judge", "unstepped")):
        run.asks("weights", 50, name=f"{module}.a.weight", kind="parameter", use=use)
    for _ in range(4):
        run.asks("layer", 10, module="generator.a")
    for _ in range(passes):
        run.asks("layer", 100, module="judge.a")
        for _ in range(3):
            run.asks("layer", 100, module="judge.b")
    finding = finding_of(run.fails("layer", 60, tmp_path), "unstepped_parameters")
    assert (None if finding is None else finding.bytes) == (told_mib and told_mib * MIB)


@pytest.mark.parametrize(
    ("sizes", "is_told"), [([50, 10, 40, 20], True), ([20, 40, 10, 50], False)]
)
def test_a_copy_of_the_model_takes_none_of_its_results(
    tmp_path: Path, sizes: list[int], *, is_told: bool
) -> None:
    """A reference, told by its sizes; a network with the same ones the other way round is none."""
    run = MadeRun(FRAMES)
    for module, use, own in (("policy", "stepped", [50, 10, 40, 20]), ("ref", "unstepped", sizes)):
        for number, mib in enumerate(own):
            run.asks("weights", mib, name=f"{module}.{number}.weight", kind="parameter", use=use)
    for module in ("policy", "ref"):
        for number in range(4):
            run.asks("layer", 100, module=f"{module}.{number}")
    finding = finding_of(run.fails("layer", 60, tmp_path), "unstepped_parameters")
    assert (finding is not None) == is_told
    if finding is not None:
        assert finding.bytes == (4 - 2) * 100 * MIB  # an operator's input and output


def test_the_state_of_what_rests_counts(tmp_path: Path) -> None:
    run = MadeRun(FRAMES)
    for module, use in (("body", "unstepped"), ("head", "stepped")):
        run.asks("weights", 50, name=f"{module}.weight", kind="parameter", use=use)
    for name, kind in (
        ("grad[body.weight]", "gradient"),
        ("optimizer.exp_avg[body.weight]", "optimizer_state"),
        ("optimizer.exp_avg_sq[body.weight]", "optimizer_state"),
        ("optimizer.exp_avg[head.weight]", "optimizer_state"),
    ):
        run.asks("weights", 50, name=name, kind=kind)
    finding = finding_of(run.fails("layer", 60, tmp_path), "unstepped_parameters")
    assert finding is not None
    assert finding.bytes == (3 - 2) * 50 * MIB  # an operator's input and output would be there, too
    assert "a learning rate of 0" in " ".join(finding.evidence)


def steps(
    tmp_path: Path, source: dict[tuple[str, int], str], *, entries: int, mib: int = 20
) -> int | None:
    """What is told of the lists of a step, in MiB.

    Args:
        entries: of each list; there are five parameters.
        mib: of each entry; a parameter has 20.
    """
    run = MadeRun(FRAMES)
    for number in range(5):
        run.asks("weights", 20, name=f"model.l{number}.weight", kind="parameter", use="stepped")
    run.frees(run.asks("layer", 40))
    run.asks("backward", 20, name="grad[model.l0.weight]", kind="gradient")
    for part in ("first list", "second list"):
        for _ in range(entries):
            run.asks(part, mib)
    finding = finding_of(run.fails("numbers", 20, tmp_path, source=source), "optimizer_list")
    return None if finding is None or finding.bytes is None else finding.bytes // MIB


@pytest.mark.parametrize(
    ("entries", "mib", "told_mib"), [(5, 20, 200), (4, 20, 160), (3, 20, None), (5, 21, None)]
)
def test_lists_as_long_as_the_parameters(
    tmp_path: Path, entries: int, mib: int, told_mib: int | None
) -> None:
    assert steps(tmp_path, LISTS, entries=entries, mib=mib) == told_mib


@pytest.mark.parametrize("text", ["m_hat = m / (1 - b1 ** t)", "self.m = [m * b1 for m in self.m]"])
def test_what_is_no_list_of_its_own(tmp_path: Path, text: str) -> None:
    assert steps(tmp_path, dict.fromkeys(LISTS, text), entries=5) is None


def test_without_source_text_nobody_knows_of_lists(tmp_path: Path) -> None:
    assert steps(tmp_path, {}, entries=5) is None
