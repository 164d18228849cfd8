"""L-BFGS's history: how many pairs of directions and steps it keeps hangs on values
(torch/optim/lbfgs.py: a line search that ends, and ``ys > 1e-10``).
"""

from __future__ import annotations

from typing import Any

HISTORY = "L-BFGS's history: how many pairs it keeps hangs on values"
_CALLS = "vramlens_calls"
_OF_A_PAIR = 2


def note_history(optimizer: Any, notes: dict[str, int | None]) -> None:
    """Notes the bytes of the pairs that an optimizer may keep, and does not in this prediction."""
    if type(optimizer).__name__ != "LBFGS":
        return
    calls = optimizer.__dict__.get(_CALLS, 0) + 1
    setattr(optimizer, _CALLS, calls)
    settings = optimizer.param_groups[0]
    weights = settings["params"]
    kept = len(optimizer.state[weights[0]].get("old_dirs", ()))
    most = min(settings["history_size"], calls * settings["max_iter"])
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    notes[HISTORY] = max(0, most - kept) * _OF_A_PAIR * size
