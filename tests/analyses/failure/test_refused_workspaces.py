"""Earlier failures that are cuDNN's refused workspaces are told from others."""

from __future__ import annotations

import pytest

from support.recordings import DATA
from vramlens import load
from vramlens.report.explain.answer_words import sentences


@pytest.mark.parametrize(
    ("name", "earlier"), [("resnet50.cap70", 31), ("kept_loss.cap45", 16), ("vaegan.cap85", 2)]
)
def test_what_cudnn_does_without_is_called_harmless(name: str, earlier: int) -> None:
    """In the forward pass by the stack; in the backward pass, which has none, by asking again."""
    explanation = load(DATA / f"failures/{name}.vram").explain()
    assert explanation.oom is not None
    assert explanation.oom.refused_workspaces == earlier == explanation.oom.count - 1
    assert (
        f"{earlier} requests had failed before it, likely for larger workspaces of cuDNN, which is"
        " harmless."
    ) in sentences(explanation)


@pytest.mark.parametrize("name", ["recordings/oom_train.pickle.xz", "captured/oom_backward.vram"])
def test_a_program_without_convolutions_has_none(name: str) -> None:
    oom = load(DATA / name).explain().oom
    assert oom is not None
    assert oom.refused_workspaces == 0
