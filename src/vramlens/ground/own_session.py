"""Processes that begin a session of their own, ended with all that they have started."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Protocol


class Child(Protocol):
    """A process as ``subprocess`` or ``asyncio`` gives it, begun with ``start_new_session=True``."""

    @property
    def pid(self) -> int:
        """Its number, which is its group's, too."""

    def kill(self) -> None:
        """Ends it alone."""


def end_with_children(child: Child) -> None:
    """Ends a process and what it has started; alone where the system has no groups of processes."""
    with contextlib.suppress(OSError):  # all have ended
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
