"""Replay: how exact, how close its what-ifs, how fast; the tables of docs/replay.md.

    python benchmarks/replay.py DATA            # a folder of recordings, each with its truth beside it
    python benchmarks/replay.py DATA --only speed

DATA/NAME.pickle.xz is a recording, DATA/NAME.json what the allocator itself said. A truth whose
program asked for other allocations than the recording holds (another number of steps) is left out
of the what-ifs.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import os
import platform
import statistics
import time
from functools import cache
from pathlib import Path
from typing import Any

from vramlens.read.snapshot import read_snapshot
from vramlens.replay import Proven, WhatIf, prove, tune_trace
from vramlens.replay.proof import ReserveLimit
from vramlens.replay.what_if import WhatIfQuestion, ask, question
from vramlens.trace import Trace
from vramlens.units import format_size

FIGURES = {
    "allocated_bytes.all.peak": "peak_allocated",
    "requested_bytes.all.peak": "peak_requested",
    "active_bytes.all.peak": "peak_active",
    "reserved_bytes.all.peak": "peak_reserved",
    "num_alloc_retries": "retries",
    "num_ooms": "ooms",
    "num_device_alloc": "device_allocs",
}
DATA = Path()


@cache
def trace_of(name: str) -> Trace:
    return read_snapshot(
        io.BytesIO(lzma.decompress((DATA / f"{name}.pickle.xz").read_bytes())), name
    )


@cache
def truth_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return found


def cap_of(truth: dict[str, Any]) -> int | None:
    total = (truth.get("mem_get_info") or [0, 0])[1]
    if truth.get("cap_gib") and total:
        return int(truth["cap_gib"] * 2**30 / total * total)
    return truth["oom"]["device_allocated"] if truth.get("oom") else None


@cache
def proven(name: str) -> Proven:
    trace = trace_of(name)
    assert trace.main_device is not None
    return prove(trace, trace.devices[trace.main_device], cap_of(truth_of(name)))


def self_replays() -> None:
    """Each folder: recordings, exact ones (from the file alone), those with the measured peaks
    and counters.
    """
    print("| folder | recordings | exact | peaks and counters equal |\n|---|---:|---:|---:|")
    counts: dict[str, list[int]] = {}
    for path in sorted(DATA.rglob("*.pickle.xz")):
        name = str(path.relative_to(DATA)).removesuffix(".pickle.xz")
        if name.endswith(".nccl"):
            continue
        trace, stats = trace_of(name), truth_of(name)["stats"]
        row = counts.setdefault(str(Path(name).parent), [0, 0, 0])
        found = {
            index: prove(trace, device)
            for index, device in trace.devices.items()
            if len(device.events)
        }
        row[0] += 1
        row[1] += all(one.recorded.exact for one in found.values())
        assert trace.main_device is not None
        summary = found[trace.main_device].replay.summary
        row[2] += all(stats.get(key) in (None, summary[ours]) for key, ours in FIGURES.items())
    for folder, row in counts.items():
        print(f"| {folder} | {' | '.join(map(str, row))} |")


def pairs() -> list[tuple[str, str]]:
    """A recording, and a truth of the same program under other settings."""
    found = []
    for path in sorted((DATA / "replay").rglob("*.json")):
        name = str(path.relative_to(DATA)).removesuffix(".json")
        base = path.name.removesuffix(".json").split("__")[0]
        sources = [f"recordings/{base.split('_cap')[0]}", f"{Path(name).parent}/{base}__c0"]
        for source in sources:
            if source == name or not (DATA / f"{source}.pickle.xz").exists():
                continue
            ours, theirs = truth_of(source), truth_of(name)
            counts = [one["stats"]["allocation.all.allocated"] for one in (ours, theirs)]
            # Failures make cuDNN ask for other workspaces; all else is the same program or not.
            if counts[0] == counts[1] or (
                theirs["stats"]["num_ooms"] and "oom_message" not in ours
            ):
                found.append((source, name))
    return found


def what_ifs() -> None:
    print(
        "\n| truth | from | predicted | range | measured | retries (measured) | outcome (measured) |"
    )
    print("|---|---|---:|---|---:|---:|---|")
    rows: list[tuple[WhatIf, dict[str, Any]]] = []
    for source, name in pairs():
        truth, found = truth_of(name), proven(source)
        cap = cap_of(truth)
        settings = question(found, truth["conf"]).settings
        limit = ReserveLimit(cap, source="given") if cap is not None else ReserveLimit()
        row = ask(found, [WhatIfQuestion(settings, limit)])[0]
        rows.append((row, truth))
        stats = truth["stats"]
        died = "dies" if "oom_message" in truth else "lives"
        told = {True: "dies", False: "lives", None: "cannot tell"}[row.oom]
        print(
            f"| {name.removeprefix('replay/')} | {source.removeprefix('replay/')} |"
            f" {format_size(row.peak_reserved_bytes)} | {format_size(row.low_bytes)} to {format_size(row.high_bytes)} |"
            f" {format_size(stats['reserved_bytes.all.peak'])} | {row.retries} ({stats['num_alloc_retries']}) |"
            f" {told} ({died}) |"
        )
    summarize(rows)


def summarize(rows: list[tuple[WhatIf, dict[str, Any]]]) -> None:
    truths = [truth["stats"]["reserved_bytes.all.peak"] for _, truth in rows]
    equal = [row.peak_reserved_bytes == truth for (row, _), truth in zip(rows, truths, strict=True)]
    inside = [
        row.low_bytes <= truth <= row.high_bytes
        for (row, _), truth in zip(rows, truths, strict=True)
    ]
    expandable = [
        good for good, (row, _) in zip(equal, rows, strict=True) if row.settings.expandable_segments
    ]
    widths = [(row.high_bytes - row.low_bytes) / row.peak_reserved_bytes for row, _ in rows]
    unsure = [
        width for width, (row, _) in zip(widths, rows, strict=True) if row.confidence != "exact"
    ]
    wrong = sum(row.oom not in (None, "oom_message" in truth) for row, truth in rows)
    print(
        f"\n{len(rows)} what-ifs: {sum(equal)} equal to the byte, {sum(inside)} inside their range;",
        end=" ",
    )
    print(f"under expandable segments {sum(expandable)} of {len(expandable)} equal.")
    print(
        f"Width of the range: median {statistics.median(widths):.2%}, of those not exact", end=" "
    )
    print(f"{statistics.median(unsure):.2%}, widest {max(widths):.1%}.")
    print(f"Live or die: {wrong} wrong, {sum(row.oom is None for row, _ in rows)} not told.")


def speed(runs: int = 7) -> None:
    print(
        f"\n{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; best of {runs} runs.\n"
    )
    print(
        "| recording | events | proof | one what-if, driver's order | tune |\n|---|---:|---:|---:|---:|"
    )
    for name in ("recordings/gpt_varlen", "recordings/million"):
        found, trace = proven(name), trace_of(name)
        events = len(found.device.events)
        native = found.recorded.settings.native(found.recorded.version)
        proof = best(lambda trace=trace, found=found: prove(trace, found.device), runs)
        one = best(
            lambda found=found, native=native: found.replay.run(
                native, addresses=0, completion=0, seed=0
            ),
            runs,
        )
        cap = int(found.recorded.peak_reserved_bytes * 0.95)
        tuned = best(lambda trace=trace, cap=cap: tune_trace(trace, cap_bytes=cap), 2)
        settings = len(tune_trace(trace, cap_bytes=cap).tried)
        print(
            f"| {name} | {events:,} | {proof * 1e3:.1f} ms ({events / proof / 1e6:.1f} M/s) |"
            f" {one * 1e3:.1f} ms ({events / one / 1e6:.1f} M/s) | {tuned:.2f} s ({settings} settings) |"
        )


def best(what: Any, runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        what()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    global DATA
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", choices=("exact", "what-if", "speed"))
    arguments = parser.parse_args()
    DATA = arguments.data
    for part, show in (("exact", self_replays), ("what-if", what_ifs), ("speed", speed)):
        if arguments.only in (None, part):
            show()


if __name__ == "__main__":
    main()
