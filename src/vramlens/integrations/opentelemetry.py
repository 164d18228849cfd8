"""OpenTelemetry: ``hw.gpu.memory.usage``, ``.limit`` and ``.utilization``, and memory by kind under
``vramlens.``.

Names, units and attributes are those of OpenTelemetry's semantic conventions for hardware (status:
development); they have none for who holds the memory, hence ``vramlens.gpu.memory.usage`` with the
attribute ``kind``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any
from urllib.parse import urlsplit

from vramlens import __version__
from vramlens.capture.warn import say_once
from vramlens.errors import UsageError
from vramlens.integrations.shared.extras import need
from vramlens.integrations.shared.figures import (
    AllFigures,
    GpuFigures,
    MachineFigures,
    figures_of_program,
)
from vramlens.monitor.alerts.actions import is_web_address
from vramlens.monitor.machine.machine import MachineNow
from vramlens.monitor.place_in_job import place_of_machine

_TOOL, _EXTRA = "OpenTelemetry", "otel"
_NAMES = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_LONGEST = 300


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
            endpoint: such as ``http://localhost:4318``, to which ``/v1/metrics`` is appended; by
                default what the OTEL_ variables say.
            interval_s: seconds between two exports.
            reader: reads instead of the exporter.

        Raises:
            UsageError: OpenTelemetry is not installed, or the endpoint is no address.
        """
        refuse_endpoint(endpoint)
        sdk = need("opentelemetry.sdk.metrics", _EXTRA, _TOOL)
        if reader is None:
            export = need("opentelemetry.sdk.metrics.export", _EXTRA, _TOOL)
            otlp = need("opentelemetry.exporter.otlp.proto.http.metric_exporter", _EXTRA, _TOOL)
            exporter = otlp.OTLPMetricExporter(endpoint=_metrics_endpoint(endpoint), timeout=5)
            _tell_failures_once()
            reader = export.PeriodicExportingMetricReader(
                exporter, export_interval_millis=interval_s * 1000
            )
        resources = need("opentelemetry.sdk.resources", _EXTRA, _TOOL)
        self._figures = MachineFigures()
        self._provider = sdk.MeterProvider(
            metric_readers=[reader], resource=resources.Resource.create(_resource(os.environ))
        )
        _observe(self._provider, self._figures.newest)

    def take(self, now: MachineNow) -> None:
        """Keeps the look that is exported next."""
        self._figures.take(now)

    def close(self) -> None:
        """Exports for the last time, and ends."""
        self._provider.shutdown(timeout_millis=5000)


def refuse_endpoint(endpoint: str | None) -> None:
    """Raises UsageError where the address to send to, or that of the OTEL_ variables, is none."""
    stated = {"--otel": endpoint, **{name: os.environ.get(name) for name in _NAMES}}
    # The first that is there is what the SDK takes.
    name, address = next(((name, text) for name, text in stated.items() if text), ("", ""))
    if address and not is_web_address(address):
        raise UsageError(
            f"{name} {address!r} is not an http or https address: write http://localhost:4318"
        )


def _tell_failures_once() -> None:
    """Has the SDK's own words, one traceback or line an export, become one line: ``vramlens top``
    may run for weeks beside a collector that is down.
    """
    logger = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, _Once) for handler in logger.handlers):
        logger.addHandler(_Once(logging.WARNING))
    logger.propagate = False


class _Once(logging.Handler):
    """Says the first thing that OpenTelemetry complains about."""

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging for each complaint."""
        say_once(
            "OpenTelemetry: metrics could not be sent, and are tried again at each export without"
            f" another word: {record.getMessage().strip().partition(chr(10))[0][:_LONGEST]}",
            about=_TOOL,
        )


def _metrics_endpoint(endpoint: str | None) -> str | None:
    """The address of metrics: a collector's own address gets the path that OTLP gives them."""
    if endpoint is None or urlsplit(endpoint).path.strip("/"):
        return endpoint
    return f"{endpoint.rstrip('/')}/v1/metrics"


def _resource(environment: Mapping[str, str]) -> dict[str, str]:
    """Who sends: the service and the host, where OpenTelemetry's own variables do not say."""
    stated = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    attributes = {"host.name": place_of_machine().host or ""}
    if "OTEL_SERVICE_NAME" not in environment:
        attributes["service.name"] = "vramlens"
    return {key: text for key, text in attributes.items() if text and f"{key}=" not in stated}


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
        "hw.gpu.memory.usage",
        observing(attrgetter("used_bytes")),
        "By",
        "Memory of the GPU in use.",
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
    for name, figure, unit, about in _OWN_GAUGES:
        meter.create_observable_gauge(name, observing(figure), unit, about)
    for name, figure, unit, about in _OWN_COUNTERS:
        meter.create_observable_counter(name, observing(figure), unit, about)
    meter.create_observable_up_down_counter(
        "vramlens.gpu.memory.usage", [by_kind], "By", "Memory by kind; the kinds sum to all of it."
    )


_OwnMetric = tuple[str, Callable[[GpuFigures], float | None], str, str]
"""A metric's name, its figure, its unit, and what it is about."""
_OWN_GAUGES: tuple[_OwnMetric, ...] = (
    ("vramlens.gpu.growth", attrgetter("growth_bytes"), "By/{step}", "What a step leaves behind."),
    ("vramlens.gpu.steps_left", attrgetter("steps_left"), "{step}", "Steps until memory runs out."),
    ("vramlens.gpu.time_left", attrgetter("seconds_left"), "s", "Time until memory runs out."),
)
_OWN_COUNTERS: tuple[_OwnMetric, ...] = (
    ("vramlens.gpu.alloc_retries", attrgetter("retries"), "{retry}", "PyTorch emptied its cache."),
    ("vramlens.gpu.ooms", attrgetter("failures"), "{failure}", "Requests for memory that failed."),
)


def _share(device: GpuFigures) -> float | None:
    used = device.used_bytes
    return None if used is None or not device.total_bytes else used / device.total_bytes


def _attributes(device: GpuFigures, figures: AllFigures | None) -> dict[str, str]:
    attributes = {
        "hw.type": "gpu",
        "hw.id": device.uuid or device.device,
        "hw.name": f"GPU {device.device}",
        "hw.model": device.product,
        "hw.vendor": "NVIDIA" if device.product and "NVIDIA" in device.product else None,
        "hw.driver_version": figures.driver_version if figures is not None else None,
    }
    return {key: text for key, text in attributes.items() if text}
