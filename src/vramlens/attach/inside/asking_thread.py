"""The thread that asks for a copy of the process: what is its alone, and a search asks for.

The copy runs on a thread of our own. What Python and PyTorch keep by thread is carried there.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from vramlens.capture.process.own_thread import get_ident
from vramlens.live.heap.looking_thread import look_for

_AUTOCAST_DEVICES = ("cuda", "cpu", "xpu")


class AskingThread:
    """The thread that makes this."""

    def __init__(self) -> None:
        self._ident = get_ident()
        self._context = contextvars.copy_context()
        self._torch: Any = sys.modules.get("torch")
        self._autocast: dict[str, Any] = {}
        self._depth = 0
        self._is_caching = False
        with suppress(Exception):  # torch is not there, not whole, or of another version
            self._ask_autocast()

    def run_in_copy(self, work: Callable[[], Any]) -> Any:
        """What the work gives when it is run in the copy as if on this thread."""
        look_for(self._ident)
        with suppress(Exception):
            self._set_autocast()
        return self._context.run(work)

    def _ask_autocast(self) -> None:
        torch = self._torch
        for device in _AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                self._autocast[device] = torch.get_autocast_dtype(device)
        if self._autocast:
            self._is_caching = torch.is_autocast_cache_enabled()
            self._depth = int(torch.autocast_increment_nesting()) - 1
            torch.autocast_decrement_nesting()

    def _set_autocast(self) -> None:
        torch = self._torch
        for device, dtype in self._autocast.items():
            torch.set_autocast_enabled(device, True)
            torch.set_autocast_dtype(device, dtype)
        if self._autocast:
            torch.set_autocast_cache_enabled(self._is_caching)
        for _ in range(self._depth):
            torch.autocast_increment_nesting()
