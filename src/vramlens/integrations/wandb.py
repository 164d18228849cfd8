"""Weights & Biases: a monitor's scalars in the program's run; report and recording as an
artifact.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from vramlens.errors import UsageError
from vramlens.integrations.shared.extras import need
from vramlens.monitor import Monitor
from vramlens.monitor.scalars import scalars


class WandbMemory:
    """Logs to a run. Without a step the scalars go with the program's next ``log``: its steps
    stay its own.
    """

    def __init__(self, monitor: Monitor, run: Any = None) -> None:
        """Prepares.

        Args:
            monitor: a monitor that runs.
            run: a run; by default the one that the program has begun.

        Raises:
            UsageError: wandb is not installed, or there is no run.
        """
        self._wandb = need("wandb", "wandb", "wandb")
        self._monitor, self._run = monitor, run if run is not None else self._wandb.run
        if self._run is None:
            raise UsageError("no wandb run is active: call wandb.init() first, or pass run=")

    def log(self, step: int | None = None) -> None:
        """Logs the newest scalars."""
        values = scalars(self._monitor)
        if step is None:
            self._run.log(values, commit=False)
        else:
            self._run.log(values, step=step)

    def finish(self, files: Iterable[str | os.PathLike[str]] = ()) -> None:
        """Puts peaks into the run's summary, and files (a report, a recording) into an artifact."""
        for device in self._monitor.summary().devices:
            if device.peak_allocated_bytes is not None:
                self._run.summary[f"memory/gpu{device.device}_peak_allocated_bytes"] = (
                    device.peak_allocated_bytes
                )
        paths = [os.fspath(path) for path in files]
        if paths:
            artifact = self._wandb.Artifact(f"vramlens-{self._run.id}", type="memory")
            for path in paths:
                artifact.add_file(path)
            self._run.log_artifact(artifact)
