"""Prometheus: the machine's or this program's memory as metrics; no label grows with processes or
lines.

``vramlens_device_memory_bytes{device, uuid, kind}``: its kinds sum to the GPU's memory: ``sum``
means something.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from vramlens import __version__
from vramlens.capture.process_group import distributed_state
from vramlens.errors import InputError, UsageError
from vramlens.integrations.shared.extras import need
from vramlens.integrations.shared.figures import (
    AllFigures,
    GpuFigures,
    MachineFigures,
    figures_of_program,
)
from vramlens.integrations.slurm import job_id
from vramlens.monitor.machine.machine import MachineNow

_LABELS = ["device", "uuid"]
_Row = tuple[str, str, Callable[[GpuFigures], float | None]]
"""A metric's name, what it is about, and its figure."""
_GAUGES: tuple[_Row, ...] = (
    ("device_memory_limit_bytes", "All memory of a GPU.", attrgetter("total_bytes")),
    ("device_busy_ratio", "Share of the time in which a kernel ran.", attrgetter("busy")),
    ("device_temperature_celsius", "Temperature of a GPU.", attrgetter("temperature_c")),
    ("device_power_watts", "Power that a GPU draws.", attrgetter("power_w")),
    ("peak_bytes", "Highest peak of PyTorch's allocated bytes.", attrgetter("peak_bytes")),
    ("growth_bytes_per_step", "What a step leaves behind.", attrgetter("growth_bytes")),
    ("steps_left", "Steps until memory runs out, at this growth.", attrgetter("steps_left")),
    ("seconds_left", "Seconds until memory runs out.", attrgetter("seconds_left")),
)
_COUNTERS: tuple[_Row, ...] = (
    ("alloc_retries", "Times that PyTorch emptied its cache.", attrgetter("retries")),
    ("ooms", "Requests for memory that failed.", attrgetter("failures")),
)
_ADDRESS = re.compile(r"(?:(\[[0-9a-fA-F:]+\]|[^:\s]*):)?([0-9]{1,5})", re.ASCII)


class Collector:
    """The collector that prometheus_client asks for metrics; give it to a registry."""

    def __init__(self, look: Callable[[], AllFigures | None], *, is_program: bool) -> None:
        """Prepares.

        Args:
            look: gives the figures at each scrape.
            is_program: whether they are this program's: its rank goes with them.
        """
        self._metrics = need("prometheus_client.core", "prometheus", "prometheus-client")
        self._look, self._is_program = look, is_program

    def collect(self) -> Iterator[Any]:
        """All metrics now."""
        gauge, counter = self._metrics.GaugeMetricFamily, self._metrics.CounterMetricFamily
        figures = self._look()
        info = gauge(
            "vramlens_build_info",
            "The version of vramlens and of the driver.",
            labels=["version", "driver"],
        )
        info.add_metric([__version__, (figures.driver_version if figures else None) or ""], 1)
        yield info
        if figures is None:
            return
        memory = gauge(
            "vramlens_device_memory_bytes",
            "Memory of a GPU by kind; the kinds of a GPU sum to all of its memory.",
            labels=[*_LABELS, "kind"],
        )
        for device in figures.devices:
            for kind, size in device.kinds.items():
                memory.add_metric([*_names(device), kind], size)
        yield memory
        for name, about, figure in _GAUGES:
            yield _family(gauge, name, about, figures, figure)
        for name, about, figure in _COUNTERS:
            yield _family(counter, name, about, figures, figure)
        age_s = max(0.0, time.time() - figures.time_us / 1e6)
        yield gauge(
            "vramlens_last_look_age_seconds",
            "How old these figures are.",
            value=age_s,
        )
        yield from self._host(gauge, figures)
        if self._is_program:
            yield _rank(gauge, figures)

    def _host(self, gauge: Any, figures: AllFigures) -> Iterator[Any]:
        host = figures.host
        if host.used_bytes is not None:
            family = gauge(
                "vramlens_host_memory_bytes",
                "The host's memory; the kinds sum to all.",
                labels=["kind"],
            )
            family.add_metric(["used"], host.used_bytes)
            family.add_metric(["available"], host.available_bytes)
            yield family
        if self._is_program and host.pinned_reserved_bytes is not None:
            yield gauge(
                "vramlens_host_pinned_bytes",
                "Page-locked by PyTorch.",
                value=host.pinned_reserved_bytes,
            )


def serve(address: str | int = 9400, *, registry: Any = None) -> Callable[[], None]:
    """Serves this program's memory as metrics, and gives a function that ends it.

    Args:
        address: a port on the loopback address; ``":9400"`` listens on all interfaces,
            ``"10.0.0.5:9400"`` on one.
        registry: a ``CollectorRegistry`` to add to; by default one of its own.

    Raises:
        UsageError: prometheus-client is not installed, or the address is not one.
        InputError: the port is in use.
    """
    return _serve(Collector(figures_of_program, is_program=True), str(address), registry)[1]


class MachineExporter:
    """Serves the machine's metrics for as long as ``vramlens top`` runs.

    Attributes:
        address: where, in words.
    """

    def __init__(self, address: str) -> None:
        self._figures = MachineFigures()
        collector = Collector(self._figures.newest, is_program=False)
        self.address, self._end = _serve(collector, address, None)

    def take(self, now: MachineNow) -> None:
        """Keeps the look that the next scrape gets."""
        self._figures.take(now)

    def close(self) -> None:
        """Ends the server."""
        self._end()


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``9400`` (loopback), ``:9400`` (all interfaces) or ``host:9400``.

    Raises:
        UsageError: it is not an address.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match[2]) > 65535:
        raise UsageError(f"{text!r} is not an address: write :9400, or 127.0.0.1:9400")
    host = match[1]
    return ("127.0.0.1" if host is None else host.strip("[]") or "0.0.0.0"), int(match[2])


def _serve(collector: Collector, address: str, registry: Any) -> tuple[str, Callable[[], None]]:
    """Where the metrics are, in words, and what ends the server."""
    host, port = parse_address(address)
    client = need("prometheus_client", "prometheus", "prometheus-client")
    if registry is None:
        registry = client.CollectorRegistry()
    try:
        server, thread = client.start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"port {port} on {host}: {reason}; choose another: --prometheus :{port + 1}"
        ) from None
    registry.register(collector)

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join(2.0)

    return _address_words(host, server.server_port), end


def _address_words(host: str, port: int) -> str:
    if host in ("0.0.0.0", "::"):
        return f"http://localhost:{port}/metrics (all interfaces)"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


def _names(device: GpuFigures) -> list[str]:
    return [device.device, device.uuid or ""]


def _family(
    kind: Any,
    name: str,
    about: str,
    figures: AllFigures,
    figure: Callable[[GpuFigures], float | None],
) -> Any:
    family = kind(f"vramlens_{name}", about, labels=_LABELS)
    for device in figures.devices:
        number = figure(device)
        if number is not None:
            family.add_metric(_names(device), number)
    return family


def _rank(gauge: Any, figures: AllFigures) -> Any:
    state = distributed_state()
    in_use = [device for device in figures.devices if device.peak_bytes is not None]
    labels = {
        "rank": _label(state.rank),
        "local_rank": _label(state.local_rank),
        "world_size": _label(state.world_size),
        "job_id": _label(job_id()),
        "uuid": _label(in_use[0].uuid if in_use else None),
    }
    family = gauge("vramlens_rank_info", "This program's place in its job.", labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _label(text: object) -> str:
    return "" if text is None else str(text)
