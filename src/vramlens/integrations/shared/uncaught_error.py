"""The error that ends a program, for libraries that tell their callbacks of none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from vramlens.capture.warn import harmless


class UncaughtError:
    """Hears of the error that ends the program, before Python prints it."""

    def __init__(self, listener: Callable[[BaseException], object]) -> None:
        self._listener = harmless("telling of an uncaught error")(listener)
        self._before = sys.excepthook

    def begin(self) -> None:
        """Begins to listen; whoever listened before is called as ever."""
        self._before = sys.excepthook
        sys.excepthook = self._hear

    def end(self) -> None:
        """Listens no longer, where nobody else has come between."""
        if sys.excepthook == self._hear:
            sys.excepthook = self._before

    def _hear(
        self,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        self._listener(error)
        self._before(kind, error, traceback)
