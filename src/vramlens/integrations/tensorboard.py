"""TensorBoard: a monitor's scalars beside the program's own, and its summary as text."""

from __future__ import annotations

import os
from typing import Any

from vramlens.integrations.shared.extras import need
from vramlens.monitor import Monitor
from vramlens.monitor.scalars import scalars


class TensorBoardMemory:
    """Writes to a ``SummaryWriter``, or to a folder of its own."""

    def __init__(self, monitor: Monitor, writer: Any) -> None:
        """Prepares.

        Args:
            monitor: a monitor that runs.
            writer: the program's ``SummaryWriter``, or a folder.

        Raises:
            UsageError: TensorBoard is not installed.
        """
        self._monitor, self._owns = monitor, isinstance(writer, (str, os.PathLike))
        self.writer = writer
        if self._owns:
            need("tensorboard", "tensorboard", "TensorBoard")
            self.writer = need(
                "torch.utils.tensorboard", "tensorboard", "TensorBoard"
            ).SummaryWriter(writer)

    def log(self, step: int) -> None:
        """Writes the newest scalars under this step."""
        for name, figure in scalars(self._monitor).items():
            self.writer.add_scalar(name, figure, step)

    def finish(self) -> None:
        """Writes the summary; closes the writer where it is its own."""
        self.writer.add_text(
            "memory/summary", "\n\n".join(str(self._monitor.summary()).splitlines())
        )
        if self._owns:
            self.writer.close()
        else:
            self.writer.flush()
