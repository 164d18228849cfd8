"""Logits of positions that no loss looks at, beside batches whose positions nearly all have a label."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.analyses.explanation import Explanation
from vramlens.units import MIB

USER = "/home/user/finetune.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
FRAMES: dict[str, tuple[Frame, ...]] = {
    "weights": ((USER, 5, "load"),),
    "layer": ((f"{TORCH}/nn/modules/linear.py", 134, "forward"), CALL, (USER, 20, "step")),
    "loss": ((f"{TORCH}/nn/functional.py", 3000, "cross_entropy"), (USER, 21, "step")),
}
ROWS, COLUMNS = 8, 1024
LOGITS = ROWS * COLUMNS // 1024 * 32
"""MiB of 32 KiB for each position."""


def fails(
    folder: Path,
    *,
    ignored: int,
    columns: int = COLUMNS,
    head: str = "model.lm_head",
    loss: str = "",
) -> Explanation:
    """The answer where the loss fails."""
    run = MadeRun(FRAMES)
    run.asks("weights", 50, name="model.lm_head.weight", kind="parameter")
    for number in range(3):
        run.asks("layer", 40, module=f"model.layers.{number}.mlp")  # 40 KiB a position
    run.asks("layer", LOGITS, module=head)
    run.asks("loss", LOGITS, module=loss)
    labels = {"rows": ROWS, "columns": columns, "ignored": ignored}
    return run.fails("loss", LOGITS, folder, ignored_labels=labels)


@pytest.mark.parametrize(
    ("head", "loss"),
    [
        ("model.lm_head", ""),
        ("model", "model"),
        ("bert.cls.predictions.decoder", ""),
        ("adapted.base.model.lm_head", "adapted.base.model"),  # the model computes its loss itself
    ],
)
def test_logits_of_prompts(tmp_path: Path, head: str, loss: str) -> None:
    answer = fails(tmp_path, ignored=ROWS * 768, head=head, loss=loss)
    finding = finding_of(answer, "unlabeled_positions")
    assert finding is not None
    assert finding.verdict == "likely"
    assert finding.bytes == 3 * LOGITS * 3 // 4 * MIB
    assert finding.title.startswith("75% of the positions have no label")
    assert finding_of(answer, "activations") is None


def test_labels_that_are_one_longer_than_the_logits(tmp_path: Path) -> None:
    assert finding_of(fails(tmp_path, ignored=ROWS * 900, columns=1025), "unlabeled_positions")


@pytest.mark.parametrize(
    ("ignored", "columns"),
    [
        (ROWS * 400, COLUMNS),  # most have one
        (ROWS * 900, 1000),  # of another batch
    ],
)
def test_what_is_no_such_batch(tmp_path: Path, ignored: int, columns: int) -> None:
    answer = fails(tmp_path, ignored=ignored, columns=columns)
    assert finding_of(answer, "unlabeled_positions") is None


@pytest.mark.parametrize("module", ["mlp", "output"])
def test_layers_before_the_head_need_all_positions(tmp_path: Path, module: str) -> None:
    run = MadeRun(FRAMES)
    for number in range(3):
        run.asks("layer", LOGITS, module=f"model.layers.{number}.{module}")
    labels = {"rows": ROWS, "columns": COLUMNS, "ignored": ROWS * 1000}
    answer = run.fails("layer", LOGITS, tmp_path, ignored_labels=labels)
    assert finding_of(answer, "unlabeled_positions") is None
