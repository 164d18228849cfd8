"""What to do about a leak, in terms of the line that asked for it."""

from __future__ import annotations

from vramlens.analyses.leaks.recorded_fix import wide_scalar
from vramlens.trace import Frame

FUNCTIONAL = "/usr/lib/python3.12/site-packages/torch/nn/functional.py"


def test_losses_whose_scalar_keeps_all_errors() -> None:
    mine = Frame("train.py", 9, "main")
    assert wide_scalar([Frame(FUNCTIONAL, 3800, "mse_loss"), mine]) == "F.mse_loss"
    assert wide_scalar([Frame(FUNCTIONAL, 3400, "cross_entropy"), mine]) == ""
    assert wide_scalar([Frame("train.py", 3, "mse_loss"), mine]) == ""
    assert wide_scalar([]) == ""
