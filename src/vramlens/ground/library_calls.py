"""Questions to libraries that may lack the function, refuse or fail."""

from __future__ import annotations

from typing import Any


def answer_of(ask: Any, otherwise: Any = None) -> Any:
    """The return value of a call; ``otherwise`` where it is missing or fails."""
    try:
        return ask()
    except Exception:
        return otherwise
