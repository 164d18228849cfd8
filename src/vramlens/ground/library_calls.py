"""Questions to libraries that may lack the function, refuse or fail."""

from __future__ import annotations

from typing import Any

from vramlens.ground.program_errors import let_through


def answer_of(ask: Any, otherwise: Any = None) -> Any:
    """The return value of a call; ``otherwise`` where it is missing or fails."""
    try:
        return ask()
    except Exception as error:
        let_through(error)
        return otherwise
