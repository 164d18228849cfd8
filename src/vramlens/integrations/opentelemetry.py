"""OpenTelemetry: ``hw.gpu.memory.usage``, ``.limit`` and ``.utilization``, and memory by kind under
``vramlens.``.

Names, units and attributes are those of OpenTelemetry's semantic conventions for hardware (status:
development); they have none for who holds the memory, hence ``vramlens.gpu.memory.usage`` with the
attribute ``kind``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from vramlens import __version__
from vramlens.integrations.extras import need
from vramlens.integrations.figures import (
    AllFigures,
    GpuFigures,
    figures_of_machine,
    figures_of_program,
)
from vramlens.monitor.machine.machine import MachineNow

_TOOL, _EXTRA = "OpenTelemetry", "otel"


def instrument(meter_provider: Any = None) -> None:
    """Has this program's meter provider (by default the global one) read this program's memory when
    it exports.

    Raises:
        UsageError: OpenTelemetry is not installed.
    """
    metrics = need("opentelemetry.metrics", _EXTRA, _TOOL)
    provider = meter_provider if meter_provider is not None else metrics.get_meter_provider()
    _observe(provider, figures_of_program)


class MachineMeter:
    """Sends the machine's memory over OTLP/HTTP for as long as ``vramlens top`` runs."""

    def __init__(
        self, endpoint: str | None = None, *, interval_s: float = 10.0, reader: Any = None
    ) -> None:
        """Begins.

        Args:
            endpoint: such as ``http://localhost:4318/v1/metrics``; by default what the OTEL_
                variables say.
            interval_s: seconds between two exports.
            reader: reads instead of the exporter.

        Raises:
            UsageError: OpenTelemetry is not installed.
        """
        sdk = need("opentelemetry.sdk.metrics", _EXTRA, _TOOL)
        if reader is None:
            export = need("opentelemetry.sdk.metrics.export", _EXTRA, _TOOL)
            otlp = need("opentelemetry.exporter.otlp.proto.http.metric_exporter", _EXTRA, _TOOL)
            exporter = otlp.OTLPMetricExporter(endpoint=endpoint, timeout=5)
            reader = export.PeriodicExportingMetricReader(
                exporter, export_interval_millis=interval_s * 1000
            )
        self._now: MachineNow | None = None
        self._provider = sdk.MeterProvider(metric_readers=[reader])
        _observe(self._provider, self._figures)

    def take(self, now: MachineNow) -> None:
        """Keeps the look that is exported next."""
        self._now = now

    def close(self) -> None:
        """Exports for the last time, and ends."""
        self._provider.shutdown(timeout_millis=5000)

    def _figures(self) -> AllFigures | None:
        return None if self._now is None else figures_of_machine(self._now)


def _observe(provider: Any, look: Callable[[], AllFigures | None]) -> None:
    metrics = need("opentelemetry.metrics", _EXTRA, _TOOL)
    meter = provider.get_meter("vramlens", __version__)

    def observing(figure: Callable[[GpuFigures], float | None]) -> Any:
        def observations(_options: Any) -> Iterator[Any]:
            figures = look()
            for device in figures.devices if figures is not None else ():
                number = figure(device)
                if number is not None:
                    yield metrics.Observation(number, _attributes(device, figures))

        return [observations]

    def by_kind(_options: Any) -> Iterator[Any]:
        figures = look()
        for device in figures.devices if figures is not None else ():
            for kind, size in device.kinds.items():
                yield metrics.Observation(size, {**_attributes(device, figures), "kind": kind})

    meter.create_observable_up_down_counter(
        "hw.gpu.memory.usage", observing(_used), "By", "Memory of the GPU in use."
    )
    meter.create_observable_up_down_counter(
        "hw.gpu.memory.limit", observing(attrgetter("total_bytes")), "By", "Memory of the GPU."
    )
    meter.create_observable_gauge(
        "hw.gpu.memory.utilization", observing(_share), "1", "Share of the memory in use."
    )
    meter.create_observable_gauge(
        "hw.gpu.utilization", observing(attrgetter("busy")), "1", "Share of time it was busy."
    )
    meter.create_observable_up_down_counter(
        "vramlens.gpu.memory.usage", [by_kind], "By", "Memory by kind; the kinds sum to all of it."
    )


def _used(device: GpuFigures) -> int | None:
    if device.total_bytes is None or device.free_bytes is None:
        return None
    return device.total_bytes - device.free_bytes


def _share(device: GpuFigures) -> float | None:
    used = _used(device)
    return None if used is None or not device.total_bytes else used / device.total_bytes


def _attributes(device: GpuFigures, figures: AllFigures | None) -> dict[str, str]:
    attributes = {
        "hw.id": device.uuid or device.device,
        "hw.name": f"GPU {device.device}",
        "hw.model": device.product,
        "hw.vendor": "NVIDIA" if device.product and "NVIDIA" in device.product else None,
        "hw.driver_version": figures.driver_version if figures is not None else None,
    }
    return {key: text for key, text in attributes.items() if text}
