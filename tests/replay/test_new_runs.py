"""Runs made for the replay on a GPU (benchmarks/replay_gpu.py): predicted before they were
measured, or hard to replay.
"""

from __future__ import annotations

import io
import json
import zipfile
from functools import cache
from typing import Any

import pytest

from support.recordings import DATA
from vramlens import load
from vramlens.read.snapshot import read_snapshot
from vramlens.replay import Proven, WhatIf, prove
from vramlens.replay.what_if import ask, question
from vramlens.trace import Trace

FOLDER = DATA / "replayed"
RUNS = sorted(path.stem for path in FOLDER.glob("*.json") if path.stem != "measured")
BY_VRAMLENS = sorted(path.stem for path in FOLDER.glob("*.vram"))
MEASURED: list[dict[str, Any]] = json.loads((FOLDER / "measured.json").read_text())
FIGURES = {
    "requested_bytes.all.peak": "peak_requested",
    "allocated_bytes.all.peak": "peak_allocated",
    "active_bytes.all.peak": "peak_active",
    "reserved_bytes.all.peak": "peak_reserved",
    "num_alloc_retries": "retries",
    "num_ooms": "ooms",
    "num_device_alloc": "device_allocs",
}


def trace_of(name: str) -> Trace:
    path = FOLDER / f"{name}.vram"
    return load(path if path.exists() else FOLDER / f"{name}.pickle.xz")


def check(found: Proven, name: str) -> None:
    recorded = found.recorded
    assert recorded.exact, recorded.first_difference
    stats = json.loads((FOLDER / f"{name}.json").read_text())["stats"]
    if not recorded.warm:
        ours = {figure: found.replay.summary[key] for figure, key in FIGURES.items()}
        assert ours == {figure: stats[figure] for figure in FIGURES}


@pytest.mark.parametrize("name", RUNS)
def test_every_run_replays_exactly(name: str) -> None:
    """Pools, several streams, collections and retries under a limit, failures inside a pool's
    scope, a late start.
    """
    trace = trace_of(name)
    check(prove(trace, trace.devices[0]), name)


@pytest.mark.parametrize("name", BY_VRAMLENS)
def test_the_snapshot_alone_replays_exactly_too(name: str) -> None:
    """What vramlens records replays exactly without what it adds: the limit, the state at the
    start.
    """
    with zipfile.ZipFile(FOLDER / f"{name}.vram") as archive:
        trace = read_snapshot(io.BytesIO(archive.read("snapshot.pickle")), name)
    check(prove(trace, trace.devices[0]), name)


@pytest.mark.parametrize("name", ["pooled5_cap301__default", "waiting6_cap301__gc"])
def test_a_vram_knows_its_limit(name: str) -> None:
    trace = trace_of(name)
    limit = prove(trace, trace.devices[0]).recorded.limit
    assert (limit.source, limit.bytes) == ("recording", 301 << 20)


@cache
def base_of(program: str, seed: int) -> Proven:
    trace = trace_of(f"{program}{seed}__default")
    return prove(trace, trace.devices[0])


def again(row: dict[str, Any]) -> WhatIf:
    found = base_of(row["program"], row["seed"])
    return ask(found, [question(found, row["conf"], row["cap_bytes"] or None)])[0]


@pytest.mark.parametrize(
    "row", MEASURED, ids=lambda row: f"{row['program']}-{row['cap_bytes'] >> 20}-{row['conf']}"
)
def test_what_was_predicted_came_true(row: dict[str, Any]) -> None:
    found, measured = again(row), row["measured"]
    assert found.low_bytes <= measured["peak_reserved_bytes"] <= found.high_bytes
    assert found.oom in (None, measured["died"])
    if found.confidence == "exact" or found.settings.expandable_segments:
        assert found.peak_reserved_bytes == measured["peak_reserved_bytes"]
        assert found.retries == measured["retries"]


def test_most_predictions_are_equal_to_the_byte() -> None:
    equal = [
        again(row).peak_reserved_bytes == row["measured"]["peak_reserved_bytes"] for row in MEASURED
    ]
    assert sum(equal) >= 0.95 * len(equal)
