"""A wrapper of a wrapper, which makes copies of copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.made_failures import TORCH, Frame, MadeRun, finding_of
from vramlens.units import MIB

USER = "/home/user/tta.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1700, "_call_impl")
WRAPPER: Frame = (USER, 54, "forward")
TEXT = "out = self.model(torch.cat([view(x) for view in self.views]))"


def made(*, nested: bool) -> MadeRun:
    inside: tuple[Frame, ...] = (WRAPPER, CALL, WRAPPER) if nested else (WRAPPER,)
    return MadeRun(
        {
            "images": ((USER, 90, "label"),),
            "outer": (WRAPPER, CALL, (USER, 95, "label")),
            "inner": (*inside, CALL, (USER, 95, "label")),
            "layer": ((USER, 20, "forward"), CALL, *inside, CALL, (USER, 95, "label")),
        }
    )


@pytest.mark.parametrize(
    ("nested", "outer", "inner", "text", "is_told"),
    [
        (True, 8, 64, TEXT, True),
        (False, 8, 64, TEXT, False),
        (True, 8, 60, TEXT, False),  # no whole number of times
        (True, 8, 8, TEXT, False),
        (True, 8, 64, "return self.left(self.right(x))", False),  # a tree
    ],
)
def test_a_wrapper_that_runs_inside_of_itself(
    tmp_path: Path, text: str, outer: int, inner: int, *, nested: bool, is_told: bool
) -> None:
    run = made(nested=nested)
    run.asks("images", 1)
    run.asks("outer", outer)
    run.asks("inner", inner)
    finding = finding_of(
        run.fails("layer", 400, tmp_path, source={(USER, 54): text}), "nested_wrapper"
    )
    assert (finding is not None) == is_told
    if finding is not None:
        assert "puts 8 of each input together both times: 64 in all" in finding.title
        assert finding.bytes == (64 + 400) * 7 // 8 * MIB


def test_a_recursive_model_puts_together_what_its_inner_calls_give(tmp_path: Path) -> None:
    """From the inside out: the smaller result is that of the inner call."""
    up: Frame = (USER, 54, "forward")
    frames: dict[str, tuple[Frame, ...]] = {
        "inner": (up, CALL, up, CALL, (USER, 95, "label")),
        "outer": (up, CALL, (USER, 95, "label")),
        "layer": ((USER, 20, "forward"), CALL, up, CALL, up, CALL, (USER, 95, "label")),
    }
    run = MadeRun(frames)
    run.asks("inner", 16)
    run.asks("outer", 64)
    text = "return torch.cat([x, self.up(self.inner(self.down(x)))], 1)"
    answer = run.fails("layer", 400, tmp_path, source={(USER, 54): text})
    assert finding_of(answer, "nested_wrapper") is None
