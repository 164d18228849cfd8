"""Counters of a machine never fall, whatever programs do; growth and the age of a look go out."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from vramlens.capture.memory.memory_now import HostMemory
from vramlens.integrations.opentelemetry import _metrics_endpoint, _resource
from vramlens.integrations.prometheus import Collector
from vramlens.integrations.shared.figures import MachineFigures, _outlook
from vramlens.monitor.machine.inside import Inside, InsideDevice
from vramlens.monitor.machine.machine import DeviceNow, MachineNow, ProcessNow


def look(*programs: tuple[int, int, int], **memory: int) -> MachineNow:
    """One GPU with programs: (number, start, retries)."""
    processes = []
    for pid, started, retries in programs:
        device = InsideDevice(0, "GPU-0", retries=retries, failures=0, **memory)
        inside = Inside(pid, started, 1, step_us=500_000, devices=(device,))
        processes.append(ProcessNow(pid=pid, used_bytes=1, inside=inside))
    device = replace(A_GPU, processes=tuple(processes))
    return MachineNow(time.time_ns() // 1000 - 30_000_000, (device,), HostMemory())


A_GPU = DeviceNow(name="0", product=None, uuid="GPU-0", total_bytes=1 << 30, free_bytes=1 << 29)


def test_a_counter_goes_on_when_a_program_ends_and_its_number_is_used_again() -> None:
    figures = MachineFigures()
    seen = []
    for programs in (
        [(7, 100, 3)],
        [(7, 100, 5), (8, 100, 1)],
        [(8, 100, 1)],  # the first has ended
        [],
        [(7, 900, 2)],  # its number, another process
        [(7, 900, 0)],  # it has reset its counters
    ):
        figures.take(look(*programs))
        newest = figures.newest()
        assert newest is not None
        seen.append(newest.devices[0].retries)
    assert seen == [3, 6, 6, 6, 8, 8]


def test_a_program_whose_time_left_is_unknown_is_not_the_soonest() -> None:
    def program(pid: int, steps_left: int, step_us: int | None) -> ProcessNow:
        memory = InsideDevice(0, "GPU-0", growth_bytes=1, steps_left=steps_left)
        inside = Inside(pid, 1, 1, step_us=step_us, devices=(memory,))
        return ProcessNow(pid=pid, used_bytes=1, inside=inside)

    programs = (program(7, 9_000, None), program(8, 40, 500_000), program(9, 50, 500_000))
    outlook = _outlook(replace(A_GPU, processes=programs))
    assert (outlook["steps_left"], outlook["seconds_left"]) == (40, 20)
    outlook = _outlook(replace(A_GPU, processes=programs[:1]))
    assert (outlook["steps_left"], outlook["seconds_left"]) == (9_000, None)


def test_growth_steps_left_and_the_age_of_the_look_are_metrics() -> None:
    pytest.importorskip("prometheus_client")
    figures = MachineFigures()
    figures.take(look((7, 1, 0), growth_bytes=1 << 20, steps_left=40))
    families = {
        family.name: family for family in Collector(figures.newest, is_program=False).collect()
    }
    value = {name: family.samples[0].value for name, family in families.items() if family.samples}
    assert value["vramlens_growth_bytes_per_step"] == 1 << 20
    assert value["vramlens_steps_left"] == 40
    assert value["vramlens_seconds_left"] == 20
    assert 30 <= value["vramlens_last_look_age_seconds"] < 90


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (None, None),
        ("http://localhost:4318", "http://localhost:4318/v1/metrics"),
        ("http://localhost:4318/", "http://localhost:4318/v1/metrics"),
        ("http://localhost:4318/v1/metrics", "http://localhost:4318/v1/metrics"),
        ("https://otel.example.org/custom", "https://otel.example.org/custom"),
    ],
)
def test_a_collectors_address_gets_the_path_of_metrics(given: str | None, used: str | None) -> None:
    assert _metrics_endpoint(given) == used


def test_the_resource_names_service_and_host_where_nobody_else_does() -> None:
    assert _resource({})["service.name"] == "vramlens"
    assert _resource({})["host.name"]
    assert "service.name" not in _resource({"OTEL_SERVICE_NAME": "mine"})
    assert _resource({"OTEL_RESOURCE_ATTRIBUTES": "service.name=a,host.name=b"}) == {}
