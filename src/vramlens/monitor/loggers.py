"""Loggers of a program's experiment, which a monitor's scalars are written to.

A logger is known by its methods, as every library's users have it at hand; nothing is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from vramlens.errors import UsageError

Scalars = Mapping[str, float]
LogFunction = Callable[[Scalars, int], object]
"""Writes scalars of a step."""


def log_function(logger: object) -> LogFunction:
    """What writes scalars to a logger.

    Lightning's loggers, MLflow, Comet and Composer have ``log_metrics``, TensorBoard's writer has
    ``add_scalar``, a W&B run and an ``Accelerator`` have ``log``; a function gets scalars and step.

    Raises:
        UsageError: it has none of these.
    """
    for method, write in _BY_METHOD.items():
        if callable(getattr(logger, method, None)):
            return lambda scalars, step: write(logger, scalars, step)
    if callable(logger):
        return cast(LogFunction, logger)
    raise UsageError(
        f"loggers: a {type(logger).__name__} has no log_metrics, add_scalar or log; pass a"
        " function of scalars and step"
    )


def _log_metrics(logger: Any, scalars: Scalars, step: int) -> None:
    logger.log_metrics(dict(scalars), step=step)


def _add_scalars(writer: Any, scalars: Scalars, step: int) -> None:
    for name, figure in scalars.items():
        writer.add_scalar(name, figure, step)


def _log(run: Any, scalars: Scalars, step: int) -> None:
    if hasattr(run, "log_artifact"):
        # W&B: they go with the program's next log, whose steps stay its own.
        run.log(dict(scalars), commit=False)
    else:
        run.log(dict(scalars), step=step)


_BY_METHOD: Mapping[str, Callable[[Any, Scalars, int], None]] = {
    "log_metrics": _log_metrics,
    "add_scalar": _add_scalars,
    "log": _log,
}
