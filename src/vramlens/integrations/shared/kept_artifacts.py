"""What is kept with a run of an experiment tracker: a text and files, for the trackers in use.

Weights & Biases gets an artifact, MLflow artifacts, TensorBoard a text. A tracker is known by the
methods of what the program's library hands out; nothing is imported that the program has not
imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vramlens.capture.warn import harmless

_FOLDER = "vramlens"


def keep(handles: Iterable[object], title: str, text: str, files: Sequence[str], step: int) -> None:
    """Keeps a text and files with the run of each tracker.

    Args:
        handles: writers, runs and clients, as ``handles_of_loggers`` and ``handles_of_process``
            give them.
        title: what the text is, as a name: ``out_of_memory``.
        step: the program's step.
    """
    present = [path for path in files if os.path.isfile(path)]
    for handle in handles:
        _keep(handle, title, text, present, step)


@harmless("keeping the verdict with the experiment's tracker")
def _keep(handle: Any, title: str, text: str, files: Sequence[str], step: int) -> None:
    if isinstance(handle, tuple):
        client, run_id = handle
        client.log_text(run_id, text, f"{_FOLDER}/{title}.txt")
        for path in files:
            client.log_artifact(run_id, path, _FOLDER)
    elif hasattr(handle, "add_text"):
        fenced = "\n".join(f"    {line}" for line in text.splitlines())
        handle.add_text(f"memory/{title}", fenced, step)
        handle.flush()
    else:
        _keep_in_wandb(handle, title, text, files)


def _keep_in_wandb(run: Any, title: str, text: str, files: Sequence[str]) -> None:
    wandb: Any = sys.modules["wandb"]
    artifact = wandb.Artifact(f"vramlens-{title}-{run.id}", type="memory")
    with artifact.new_file(f"{title}.txt", mode="w") as file:
        file.write(text)
    for path in files:
        artifact.add_file(path)
    run.log_artifact(artifact)


def handles_of_loggers(loggers: Iterable[Any]) -> list[object]:
    """What reaches the runs of Lightning's loggers, or of other libraries' in their form."""
    handles = map(_handle_of_logger, loggers)
    return [handle for handle in handles if handle is not None]


@harmless("finding the run of the experiment's tracker")
def _handle_of_logger(logger: Any) -> object:
    experiment = getattr(logger, "experiment", None)
    if hasattr(experiment, "add_text") or _is_wandb_run(experiment):
        return experiment
    if hasattr(experiment, "log_artifact") and getattr(logger, "run_id", None):
        return experiment, logger.run_id
    return None


def handles_of_process() -> Iterator[object]:
    """Yields what reaches the runs that this process has begun with wandb and MLflow themselves."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    if _is_wandb_run(run):
        yield run
    mlflow: Any = sys.modules.get("mlflow")
    active = mlflow.active_run() if hasattr(mlflow, "active_run") else None
    if active is not None:
        yield mlflow.MlflowClient(), active.info.run_id


def _is_wandb_run(handle: object) -> bool:
    return hasattr(handle, "log_artifact") and hasattr(handle, "summary") and hasattr(handle, "id")
