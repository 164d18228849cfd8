"""The program's end while somebody waits for an answer: it waits for the answer, 10 s at most."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from types import TracebackType

from vramlens.attach.inside.pauses import Pauses
from vramlens.capture.process.own_thread import OwnEvent
from vramlens.capture.warn import harmless

_WAITS_FOR_S = 10.0


class ProgramEnd:
    """Holds the program's end up, from ``wait_for_answer`` until the block is left.

    A program that is killed, or leaves by ``os._exit``, is not held up.

    Attributes:
        has_come: whether the program has ended meanwhile.
    """

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self.has_come = False
        self._pid = os.getpid()
        self._is_answered = OwnEvent()
        self._hurry: Callable[[], object] | None = None

    def wait_for_answer(self, hurry: Callable[[], object]) -> None:
        """From now on the program's end calls ``hurry``, and waits."""
        self._hurry = hurry
        atexit.register(self._program_ends)

    def __enter__(self) -> ProgramEnd:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_answered.set()
        atexit.unregister(self._program_ends)

    @harmless("answering before the program ends")
    def _program_ends(self) -> None:
        if self._hurry is None or os.getpid() != self._pid:  # in a child of the program: its own
            return
        self.has_come = True
        with self._pauses.counted():
            self._hurry()
        self._is_answered.wait(_WAITS_FOR_S)
