"""L-BFGS's history: values decide how many pairs of directions and steps it keeps
(torch/optim/lbfgs.py: a line search that ends, and ``ys > 1e-10``).

Taken is a search that accepts its first step, which the Wolfe conditions then keep positive: each
iteration keeps its pair.
"""

from __future__ import annotations

import sys
from typing import Any

from vramlens.prediction.requests.request_log import RequestLog

HISTORY = "L-BFGS's history: values decide how many pairs it keeps; every iteration is assumed to keep one"
_FILE = "torch/optim/lbfgs.py"
_NAMES = ("old_dirs", "old_stps")
_FEW_FRAMES = 30


def holds_in_lbfgs(name: str, args: Any) -> bool:
    """Whether L-BFGS asks now if a step is accepted, or if its product with the change of the
    gradient is positive.
    """
    if name not in ("aten.gt", "aten.le") or args[0].dim():
        return False
    is_product = name == "aten.gt" and isinstance(args[1], float) and args[1] > 0
    is_slope = name == "aten.le" and not isinstance(args[1], (int, float))
    return (is_product or is_slope) and _is_lbfgs_running()


def _is_lbfgs_running() -> bool:
    frame: Any = sys._getframe(2)
    for _ in range(_FEW_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith(_FILE):
            return True
        frame = frame.f_back
    return False


def note_history(optimizer: Any, log: RequestLog, notes: dict[str, int | None]) -> None:
    """Notes which tensors an optimizer may not keep after all."""
    if type(optimizer).__name__ != "LBFGS":
        return
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    for tensor in (tensor for name in _NAMES for tensor in state.get(name) or ()):
        log.may_be_missing(tensor)
        notes[HISTORY] = None
