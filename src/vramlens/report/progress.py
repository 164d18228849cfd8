"""Progress: a bar on standard error while a file is read, for people only and only when it takes
a while.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE_SECONDS = 1.0


@contextmanager
def reading_progress(title: str, stream: TextIO | None = None) -> Iterator[Callable[[float], None]]:
    """A function to call with the share that has been read, from 0 to 1.

    Once reading has taken longer than a second it shows a bar; where ``stream`` is not a terminal it
    never does.
    """
    bar = _Bar(title, stream or sys.stderr)
    try:
        yield bar.show
    finally:
        bar.stop()


class _Bar:
    def __init__(self, title: str, stream: TextIO | None) -> None:
        self._title, self._stream = title, stream
        self._wanted = stream is not None and stream.isatty()
        self._begun = time.monotonic()
        self._drawn: tuple[Progress, TaskID] | None = None

    def show(self, share_read: float) -> None:
        if not self._wanted or time.monotonic() - self._begun < _PATIENCE_SECONDS:
            return
        if share_read >= 1:  # what follows is no longer reading: the bar has said what it could
            self.stop()
            return
        if self._drawn is None:
            self._drawn = self._start()
        bar, task = self._drawn
        bar.update(task, completed=share_read)

    def stop(self) -> None:
        self._wanted = False
        if self._drawn is not None:
            self._drawn[0].stop()

    def _start(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
        )
        bar = Progress(*columns, console=Console(file=self._stream), transient=True)
        task = bar.add_task(self._title, total=1.0)
        bar.start()
        return bar, task
