"""Slow, obvious twins of what is computed from a profiler trace: moment by moment, event by
event.
"""

from __future__ import annotations

import itertools
import json


def events_of(text: str) -> list[dict]:
    found = json.loads(text)
    return found["traceEvents"] if isinstance(found, dict) else found


def _ns(us: float, origin: float) -> int:
    return round((us - origin) * 1000)


CPU = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "Operator", "Runtime"}
GPU = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}


def _spans(text: str, categories: set[str]) -> list[tuple]:
    events = events_of(text)
    origin = min(e["ts"] for e in events if "ts" in e and "dur" in e and e.get("cat") != "Trace")
    memory = [e["ts"] for e in events if e.get("name") == "[memory]"]
    origin = min([origin, *memory])
    found = []
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in categories:
            start = _ns(event["ts"], origin)
            end = start + round(event["dur"] * 1000)
            found.append((event["name"], event["pid"], str(event["tid"]), start, end))
    return found


def self_times(text: str) -> dict[str, int]:
    """Nanoseconds by name during which no span that began later on the same thread was open, at
    every cut of time.
    """
    spans = _spans(text, CPU)
    sums: dict[str, int] = {}
    for thread in {span[1:3] for span in spans}:
        mine = sorted((span for span in spans if span[1:3] == thread), key=lambda s: (s[3], -s[4]))
        cuts = sorted({time for span in mine for time in span[3:]})
        for first, last in itertools.pairwise(cuts):
            open_now = [span for span in mine if span[3] <= first and span[4] >= last]
            if open_now:
                name = open_now[-1][0]
                sums[name] = sums.get(name, 0) + last - first
    return sums


def busy_ns(text: str, device: int) -> int:
    """Nanoseconds during which something ran on a device, by cutting time at every beginning and
    end.
    """
    spans = [span for span in _spans(text, GPU) if span[1] == device]
    cuts = sorted({time for span in spans for time in span[3:]})
    return sum(
        last - first
        for first, last in itertools.pairwise(cuts)
        if any(span[3] <= first and span[4] >= last for span in spans)
    )


def alive_at_peak(text: str, device: tuple[int, int]) -> tuple[int, dict[int, int]]:
    """The allocator's sum at its first maximum, and the allocations alive then by address."""
    memory = [
        event
        for event in sorted(
            (e for e in events_of(text) if e.get("name") == "[memory]"), key=lambda e: e["ts"]
        )
        if (event["args"]["Device Type"], event["args"]["Device Id"]) == device
        and event["args"]["Bytes"]
    ]
    alive: dict[int, int] = {}
    best, then = -1, {}
    for event in memory:
        args = event["args"]
        if args["Bytes"] > 0:
            alive[args["Addr"]] = args["Bytes"]
        else:
            alive.pop(args["Addr"], None)
        if args["Total Allocated"] > best:
            best, then = args["Total Allocated"], dict(alive)
    return best, then
