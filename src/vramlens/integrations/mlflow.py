"""MLflow: a monitor's scalars as metrics of a run; report and recording as its artifacts."""

from __future__ import annotations

import os
from collections.abc import Iterable

from vramlens.errors import UsageError
from vramlens.integrations.shared.extras import need
from vramlens.monitor import Monitor
from vramlens.monitor.scalars import scalars


class MlflowMemory:
    """Logs to a run by its number: which run is active on a thread does not matter."""

    def __init__(self, monitor: Monitor, run_id: str | None = None) -> None:
        """Prepares.

        Args:
            monitor: a monitor that runs.
            run_id: a run; by default the active one.

        Raises:
            UsageError: mlflow is not installed, or no run is active.
        """
        mlflow = need("mlflow", "mlflow", "mlflow")
        active = mlflow.active_run()
        if run_id is None and active is None:
            raise UsageError(
                "no mlflow run is active: call mlflow.start_run() first, or pass run_id="
            )
        self._monitor, self._mlflow = monitor, mlflow
        self._run_id = run_id if run_id is not None else active.info.run_id

    def log(self, step: int) -> None:
        """Logs the newest scalars under this step."""
        self._mlflow.log_metrics(scalars(self._monitor), step=step, run_id=self._run_id)

    def finish(self, files: Iterable[str | os.PathLike[str]] = ()) -> None:
        """Keeps the summary, and files such as a report or a recording, as artifacts under
        ``vramlens``.
        """
        self._mlflow.log_dict(
            self._monitor.summary().to_dict(), "vramlens/summary.json", run_id=self._run_id
        )
        for path in files:
            self._mlflow.log_artifact(os.fspath(path), "vramlens", run_id=self._run_id)
