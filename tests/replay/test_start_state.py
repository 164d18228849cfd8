"""Recordings that began in mid-run, with the state at their start as a ``.vram`` file holds it."""

from __future__ import annotations

import json
import pickle
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.recordings import DATA, block, data_of, event, read, segment, snapshot
from vramlens import load
from vramlens.replay import Proven, prove
from vramlens.replay.requests import requests_of
from vramlens.trace import Trace

GPT, MULTIRES = "recordings/gpt", "recordings/cnn_multires"
EXPANDABLE = "replay/recorded_h100/fuzz11cap__c1"


@cache
def whole(name: str) -> tuple[Trace, Proven]:
    trace = read(data_of(name))
    return trace, prove(trace, trace.devices[0])


def state_before(name: str, event: int) -> bytes:
    """The segments and blocks right before an event, as ``memory_snapshot`` gives them."""
    trace, proven = whole(name)
    device, made = trace.devices[0], []
    rows, segments = device.allocations, device.segments
    requests = requests_of(trace, device)
    pool_of = {
        int(rows.segment[row]): int(number)
        for row, number in enumerate(requests.columns["row_pool"].tolist())
    }
    blocks = [
        (int(rows.address[r]), int(proven.taken_bytes[r]), int(rows.requested_bytes[r]), bool(rows.free_requested[r] < event))
        for r in rows.alive_after(event - 1).tolist()
    ]  # fmt: skip
    spans: list[list[Any]] = []
    for s in sorted(
        segments.alive_after(event - 1).tolist(), key=lambda s: int(segments.address[s])
    ):
        start, size, mapped = (
            int(segments.address[s]),
            int(segments.size_bytes[s]),
            bool(segments.expandable[s]),
        )
        pool = requests.pools[pool_of.get(s, 0)]
        if spans and mapped and spans[-1][2] and spans[-1][0] + spans[-1][1] == start:
            spans[-1][1] += size
        else:
            spans.append([start, size, mapped, int(segments.stream[s]), pool])
    for start, size, mapped, stream, pool in spans:
        parts, at = [], start
        for address, taken, requested, pending in sorted(blocks):
            if start <= address < start + size:
                if at < address:
                    parts.append(block(at, address - at, 0, "inactive"))
                parts.append(
                    block(
                        address,
                        taken,
                        requested,
                        "active_pending_free" if pending else "active_allocated",
                    )
                )
                at = address + taken
        if at < start + size:
            parts.append(block(at, start + size - at, 0, "inactive"))
        named = pool if pool[0] >= 0 else (0, 1)
        made.append(
            segment(start, size, parts, stream=stream, is_expandable=mapped, segment_pool_id=named)
        )
    return pickle.dumps({"segments": made})


def cut(name: str, share: float) -> tuple[bytes, int]:
    """The recording without its beginning, and the event that it begins with."""
    snapshot = pickle.loads(data_of(name))  # our own data
    at = int(len(snapshot["device_traces"][0]) * share)
    snapshot["device_traces"][0] = snapshot["device_traces"][0][at:]
    return pickle.dumps(snapshot), at


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.9])
@pytest.mark.parametrize(
    "name", [GPT, MULTIRES, EXPANDABLE, "recordings/graphs", "recordings/streams"]
)
def test_with_the_state_at_its_start_a_late_recording_is_exact(name: str, share: float) -> None:
    data, at = cut(name, share)
    trace = replace(read(data), start=read(state_before(name, at)))
    if not (trace.devices[0].events.action == 0).any():
        return  # no request is left
    recorded = prove(trace, trace.devices[0]).recorded
    assert recorded.warm
    assert recorded.exact, recorded.first_difference


def test_without_it_a_rest_and_a_hole_look_alike() -> None:
    data, _ = cut(GPT, 0.5)
    trace = read(data)
    assert not prove(trace, trace.devices[0]).recorded.exact


def vram(path: Path, data: bytes, state: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("meta.json", json.dumps({"torch": "2.11.0"}))
        archive.writestr("start.pickle", state)
        archive.writestr("snapshot.pickle", data)
    return path


@pytest.mark.parametrize("state", ["", "80", "of nothing", "of a later moment"])
def test_a_state_that_does_not_fit_is_not_used(state: str, tmp_path: Path) -> None:
    data, at = cut(GPT, 0.25)
    made = {"": b"", "80": b"\x80", "of nothing": pickle.dumps({"segments": []})}
    alone = load(vram(tmp_path / "alone.vram", data, b"")).replay().recorded
    wrong = made[state] if state in made else state_before(GPT, at + 40)
    assert load(vram(tmp_path / "wrong.vram", data, wrong)).replay().recorded == alone


def test_a_vram_file_brings_it(tmp_path: Path) -> None:
    data, at = cut(GPT, 0.5)
    path = vram(tmp_path / "late.vram", data, state_before(GPT, at))
    assert load(path).replay().recorded.exact


def test_a_real_late_start_has_it() -> None:
    trace = load(DATA / "replayed/late7__expandable.vram")
    assert trace.start is not None
    recorded = prove(trace, trace.devices[0]).recorded
    assert recorded.warm
    assert recorded.exact


def test_only_mapped_ranges_share_a_reservation() -> None:
    """What cudaMalloc gave lies where it lies, although ranges of the same pool are mapped
    elsewhere.
    """
    size = 20 * 2**20
    places = [(3 * 2**32, True), (2**31, False), (2**32, True)]
    segments = [
        segment(start, size, [block(start, size, size)], is_expandable=mapped) for start, mapped in places
    ]  # fmt: skip
    trace = read(
        pickle.dumps(
            snapshot([event("alloc", 2**40, 512), event("free_requested", 2**40, 512)], segments)
        )
    )
    columns = requests_of(trace, trace.devices[0]).columns
    found = dict(
        zip(columns["base_address"].tolist(), columns["base_reservation"].tolist(), strict=True)
    )
    assert found == {3 * 2**32: 2**32, 2**31: 2**31, 2**32: 2**32}
