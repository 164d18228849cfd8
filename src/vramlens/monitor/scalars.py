"""The scalars that a monitor gives to experiment trackers, ten at most, and the trackers' loggers.

A logger is known by its methods, as every library's users have it at hand; nothing is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from vramlens.errors import UsageError
from vramlens.monitor.monitor_samples import DeviceSample, Sample
from vramlens.units import GIB, MIB

if TYPE_CHECKING:
    from vramlens.monitor.sampler import Monitor

Scalars = Mapping[str, float]
LogFunction = Callable[[Scalars, int], object]
"""Writes scalars of a step."""


def scalars(monitor: Monitor) -> dict[str, float]:
    """The newest sample as named scalars; those that nobody knows are left out. Takes a sample
    where there is none.

    ``memory/allocated_gib``, ``reserved_gib``, ``peak_allocated_gib`` (PyTorch's counter, since its
    last reset), ``device_used_gib`` and ``device_free_gib`` (all processes), ``host_rss_gib``,
    ``host_pinned_gib``, ``growth_mib_per_step``, ``steps_left`` and ``alloc_retries``. Of several
    GPUs it is the one where this program holds most.
    """
    sample = monitor.latest or monitor.sample()
    return {} if sample is None else scalars_of(sample)


def scalars_of(sample: Sample) -> dict[str, float]:
    """One sample as named scalars."""
    figures: dict[str, tuple[int | None, int]] = {}
    device = fullest(sample)
    if device is not None:
        figures["allocated_gib"] = device.allocated_bytes, GIB
        figures["reserved_gib"] = device.reserved_bytes, GIB
        figures["peak_allocated_gib"] = device.peak_bytes, GIB
        figures["device_used_gib"] = device.used_bytes, GIB
        figures["device_free_gib"] = device.free_bytes, GIB
        figures["growth_mib_per_step"] = device.growth_bytes, MIB
        figures["steps_left"] = device.steps_left, 1
        figures["alloc_retries"] = device.retries, 1
    figures["host_rss_gib"] = sample.rss_bytes, GIB
    figures["host_pinned_gib"] = sample.pinned_bytes, GIB
    return {
        f"memory/{name}": size / unit for name, (size, unit) in figures.items() if size is not None
    }


def fullest(sample: Sample) -> DeviceSample | None:
    """The GPU on which this program holds most; before it holds any, the first."""
    return max(
        sample.devices,
        key=lambda device: (device.allocated_bytes or 0, -device.device),
        default=None,
    )


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
