"""Prometheus and OpenTelemetry, with the real libraries: a real scrape, a real export."""

from __future__ import annotations

import gzip
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.fake_nvml import GIB, FakeNvml, plug_in, several, uuid_of
from vramlens.capture.memory import driver
from vramlens.cli.main import main
from vramlens.errors import InputError
from vramlens.monitor.machine.machine import Machine

FAKE_TOP = Path(__file__).parents[1] / "monitor" / "fake_top.py"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield plug_in(several())
    driver.forget()


def scraped(port: int) -> dict[str, list[Any]]:
    """The samples by metric, parsed by Prometheus' own client."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
        text = answer.read().decode()
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_the_machine_scraped(machine: FakeNvml) -> None:
    pytest.importorskip("prometheus_client")
    from vramlens.integrations.prometheus import MachineExporter

    port = free_port()
    exporter = MachineExporter(str(port))
    try:
        assert set(scraped(port)) == {"vramlens_build_info"}  # before the first look
        exporter.take(Machine(["/nowhere"]).look())
        found = scraped(port)
    finally:
        exporter.close()
    memory = found["vramlens_device_memory_bytes"]
    for number, gpu in enumerate(machine.gpus):
        mine = [one for one in memory if one.labels["uuid"] == gpu.uuid]
        assert sum(one.value for one in mine) == gpu.total
        assert {one.labels["device"] for one in mine} == {str(number)}
    assert {frozenset(one.labels) for one in memory} == {frozenset({"device", "uuid", "kind"})}
    assert found["vramlens_device_busy_ratio"][0].value == 0.9
    assert found["vramlens_device_power_watts"][0].value == 500
    host = found["vramlens_host_memory_bytes"]
    assert sum(one.value for one in host) > GIB


def test_this_program_scraped(machine: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client")
    from vramlens.integrations.prometheus import serve

    monkeypatch.setenv("SLURM_JOB_ID", "77")
    port = free_port()
    end = serve(port)
    try:
        found = scraped(port)
    finally:
        end()
    memory = found["vramlens_device_memory_bytes"]
    assert sum(one.value for one in memory) == sum(gpu.total for gpu in machine.gpus)
    assert found["vramlens_rank_info"][0].labels["job_id"] == "77"
    with pytest.raises(OSError):
        scraped(port)  # it has ended


def test_a_port_in_use_is_one_line(machine: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client")
    from vramlens.integrations.prometheus import serve

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        with pytest.raises(InputError, match=f"port {port} on 127.0.0.1: address already in use"):
            serve(port)
        assert main(["top", "--once", "--prometheus", f"127.0.0.1:{port}"]) == 3
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_top_serves_while_it_runs() -> None:
    pytest.importorskip("prometheus_client")
    port = free_port()
    command = [
        sys.executable,
        str(FAKE_TOP),
        "several",
        "--prometheus",
        str(port),
        "--interval",
        "0.1",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        found: dict[str, list[Any]] = {}
        until = time.monotonic() + 300
        while "vramlens_alloc_retries" not in found:
            assert time.monotonic() < until
            try:
                found = scraped(port)
            except OSError:
                time.sleep(0.1)
        process.terminate()
        printed, said = process.communicate(timeout=300)
    assert (process.returncode, printed) == (0, "")
    assert said == f"vramlens: metrics are at http://127.0.0.1:{port}/metrics\n"
    kinds = {one.labels["kind"] for one in found["vramlens_device_memory_bytes"] if one.value}
    assert {"pytorch_allocated", "pytorch_cached", "nccl", "other_processes", "free"} <= kinds
    assert found["vramlens_alloc_retries"][0].name == "vramlens_alloc_retries_total"


def points(data: Any) -> dict[str, list[Any]]:
    """By metric: the points of an in-memory reader."""
    found: dict[str, list[Any]] = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                found[metric.name] = list(metric.data.data_points)
                assert metric.unit in (
                    "By",
                    "1",
                    "By/{step}",
                    "{step}",
                    "s",
                    "{retry}",
                    "{failure}",
                )
    return found


def test_otel_by_the_conventions(machine: FakeNvml) -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from vramlens.integrations.opentelemetry import MachineMeter

    reader = InMemoryMetricReader()
    meter = MachineMeter(reader=reader)
    assert reader.get_metrics_data() is None or not points(reader.get_metrics_data()).get(
        "hw.gpu.memory.usage"
    )
    meter.take(Machine(["/nowhere"]).look())
    found = points(reader.get_metrics_data())
    meter.close()
    first = next(
        one for one in found["hw.gpu.memory.usage"] if one.attributes["hw.id"] == uuid_of(0)
    )
    gpu = machine.gpus[0]
    assert first.value == gpu.total - gpu.free
    assert first.attributes["hw.type"] == "gpu"
    assert first.attributes["hw.vendor"] == "NVIDIA"
    assert first.attributes["hw.model"] == gpu.name
    share = next(
        one for one in found["hw.gpu.memory.utilization"] if one.attributes["hw.id"] == uuid_of(0)
    )
    assert share.value == pytest.approx((gpu.total - gpu.free) / gpu.total)
    assert sum(one.value for one in found["hw.gpu.memory.limit"]) == sum(
        one.total for one in machine.gpus
    )
    kinds = [
        one for one in found["vramlens.gpu.memory.usage"] if one.attributes["hw.id"] == uuid_of(0)
    ]
    assert sum(one.value for one in kinds) == gpu.total


def test_otel_in_a_program(machine: FakeNvml) -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from vramlens.integrations.opentelemetry import instrument

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    instrument(provider)
    found = points(reader.get_metrics_data())
    assert sum(one.value for one in found["vramlens.gpu.memory.usage"]) == sum(
        one.total for one in machine.gpus
    )
    provider.shutdown()


class Otlp(BaseHTTPRequestHandler):
    got: list[bytes] = []  # noqa: RUF012

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append(
            gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data
        )
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_args: Any) -> None:
        pass


def test_otel_over_the_wire(machine: FakeNvml) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    from vramlens.integrations.opentelemetry import MachineMeter

    Otlp.got = []
    server = HTTPServer(("127.0.0.1", 0), Otlp)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        meter = MachineMeter(f"http://127.0.0.1:{server.server_port}/v1/metrics", interval_s=3600)
        meter.take(Machine(["/nowhere"]).look())
        meter.close()  # exports what has not been exported
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    request = ExportMetricsServiceRequest()
    request.ParseFromString(Otlp.got[0])
    names = {metric.name for metric in request.resource_metrics[0].scope_metrics[0].metrics}
    assert {"hw.gpu.memory.usage", "hw.gpu.memory.limit", "hw.gpu.memory.utilization"} <= names


@pytest.mark.parametrize("address", ["notaurl", "localhost:4318", "ftp://x", "http://"])
def test_an_otel_address_that_is_none_is_refused(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["top", "--otel", address]) == 2
    said = capsys.readouterr().err
    assert f"--otel {address!r} is not an http or https address" in said
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    assert main(["top", "--otel"]) == 2
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in capsys.readouterr().err


def test_a_collector_that_is_down_is_told_once(
    machine: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    from vramlens.integrations.opentelemetry import MachineMeter

    meter = MachineMeter("http://127.0.0.1:9", interval_s=3600)
    meter.take(Machine(["/nowhere"]).look())
    for _ in range(2):
        meter._provider.force_flush(timeout_millis=500)
    meter.close()
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert said.startswith("vramlens: OpenTelemetry: metrics could not be sent")


def test_top_says_where_its_metrics_are(
    machine: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("prometheus_client")
    assert main(["top", "--once", "--prometheus", "127.0.0.1:0"]) == 0
    assert re.search(r"metrics are at http://127\.0\.0\.1:\d+/metrics\n", capsys.readouterr().err)
