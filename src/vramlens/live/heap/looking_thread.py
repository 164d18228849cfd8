"""The thread that a look at the heap is made for."""

from __future__ import annotations

from vramlens.capture.process.own_thread import get_ident

_copied_thread: int | None = None


def looking_thread() -> int:
    """The thread that looks; in a copy of the process, the one that asked for the copy."""
    return get_ident() if _copied_thread is None else _copied_thread


def look_for(ident: int) -> None:
    """In a copy of the process: from now on the looks are made for this thread."""
    global _copied_thread
    _copied_thread = ident
