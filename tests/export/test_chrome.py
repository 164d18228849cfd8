"""Chrome: valid JSON whose counters and spans say what the recording does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from support.recordings import data_of, read
from vramlens.analyses.attribution.attribution import Attribution
from vramlens.export.timeline import LARGEST


def counter(events: list[dict[str, Any]], name: str, process: int) -> list[int]:
    return [
        e["args"]["bytes"]
        for e in events
        if e["ph"] == "C" and (e["name"], e["pid"]) == (name, process)
    ]


def test_counters_are_the_recordings(view: Attribution, exported: Callable[..., bytes]) -> None:
    device = view.device
    found = json.loads(exported(view.trace, "chrome", device=device.device))
    events = found["traceEvents"]
    for name in ("requested", "allocated", "reserved"):
        values = counter(events, name, device.device + 1)
        assert max(values) == getattr(device, name).peak_bytes
    assert found["otherData"]["start_us"] == int(device.clock_us[0])
    assert all(event["ts"] >= 0 for event in events if "ts" in event)
    assert sum(
        event.get("name", "").startswith("step ") for event in events if event["ph"] == "X"
    ) == len(view.steps)
    assert sum(event["ph"] == "i" and event["name"].startswith("peak: ") for event in events) == 1


def test_each_thread_has_a_name_and_its_spans_nest(
    view_of: Callable[[str], Attribution], exported: Callable[..., bytes]
) -> None:
    events = json.loads(exported(view_of("gpt_annotated").trace, "chrome"))["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    spans: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] in "Xi":
            assert (event["pid"], event["tid"]) in named
        if event["ph"] == "X":
            spans.setdefault((event["pid"], event["tid"]), []).append(
                (event["ts"], event["ts"] + event["dur"])
            )
    for thread in spans.values():
        open_: list[float] = []
        for begin, end in thread:
            while open_ and open_[-1] <= begin + 1e-6:
                open_.pop()
            assert not open_ or end <= open_[-1] + 1e-6
            open_.append(end)
    assert sum(len(thread) for (_, tid), thread in spans.items() if tid >= 1000) == LARGEST


def test_every_device_is_a_process(exported: Callable[..., bytes]) -> None:
    trace = read(data_of("ranks/wrong_device/wrong_device.rank1"))
    events = json.loads(exported(trace, "chrome"))["traceEvents"]
    named = {
        e["pid"]: e["args"]["name"]
        for e in events
        if e["ph"] == "M" and e["name"] == "process_name"
    }
    assert named == {index + 1: f"GPU {index}" for index in trace.devices}
    for index, device in trace.devices.items():
        values = counter(events, "reserved", index + 1)
        assert max(values) == device.reserved.peak_bytes > 0
