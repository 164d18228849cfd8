"""Turns of a loop inside of a pass, beside layers, passes and loops that keep little."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.finding import Finding
from vramlens.units import MIB

USER = "/home/user/transport.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "turn": ((USER, 47, "soft_min"), (USER, 53, "potentials"), CALL, (USER, 80, "main")),
    "checkpoint": (
        (USER, 47, "soft_min"),
        (f"{TORCH}/utils/checkpoint.py", 500, "checkpoint"),
        (USER, 53, "potentials"),
    ),
    "other": ((USER, 60, "forward"), CALL, (USER, 80, "main")),
}
ROOT = "transport"


def told(
    folder: Path,
    turns: int,
    *,
    modules: str = ROOT,
    between: str = "",
    other: int = 10,
    part: str = "turn",
) -> Finding | None:
    """What is told of so many turns, each of the same size.

    Args:
        modules: what runs in each; "{}" is its number.
        between: a module that is called before each turn.
        other: MiB of what is in no turn.
    """
    run = MadeRun(FRAMES)
    run.asks("weights", other, name=f"{ROOT}.weight", kind="parameter")
    for turn in range(turns):
        if between:
            run.asks("other", 1, module=between)
        run.asks(part, 20, module=modules.format(turn))
    return finding_of(run.fails(part, 60, folder), "repeated_turns")


def test_turns_of_a_fixed_point(tmp_path: Path) -> None:
    finding = told(tmp_path, 10)
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == 9 * 20 * MIB
    assert "10 of a kind" in finding.title
    assert "torch.utils.checkpoint" in (finding.fix or "")


def test_a_checkpoint_of_each_turn(tmp_path: Path) -> None:
    finding = told(tmp_path, 36, part="checkpoint")
    assert finding is not None
    assert finding.bytes == 36 * 20 * MIB - 36 * 20 * MIB // 6
    assert "about 6 turns into one checkpoint" in (finding.fix or "")


@pytest.mark.parametrize(
    ("turns", "change"),
    [
        (5, {}),
        (10, {"modules": "transport.layers.{}"}),  # layers
        (10, {"modules": f"{ROOT} [no grad]"}),  # no graph
        (10, {"modules": f"{ROOT} [eval+grad]"}),  # another finding's
        (10, {"other": 900}),
    ],
)
def test_what_is_no_loop_or_keeps_little(
    tmp_path: Path, turns: int, change: dict[str, object]
) -> None:
    assert told(tmp_path, turns, **change) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("in_graph", "trains", "is_told"),
    [(True, True, True), (False, True, False), (True, False, False)],
)
def test_turns_outside_of_all_modules(
    tmp_path: Path, *, in_graph: bool, trains: bool, is_told: bool
) -> None:
    """A loop of a program's own, as Sinkhorn's, that nothing but a graph keeps."""
    frames: dict[str, tuple[Frame, ...]] = {
        "loop": ((USER, 47, "soft_min"),),
        "backward": ((f"{TORCH}/_tensor.py", 600, "backward"), (USER, 90, "fit")),
    }
    run = MadeRun(FRAMES | frames)
    run.asks("weights", 10, name=f"{ROOT}.weight", kind="parameter")
    if trains:
        run.frees(run.asks("other", 1, module=ROOT), run.asks("backward", 1))
    for _ in range(10):
        run.asks("loop", 20, name="float32[2048, 2560] tensor", in_graph=in_graph)
    finding = finding_of(run.fails("loop", 60, tmp_path), "repeated_turns")
    assert (finding is not None) == is_told
