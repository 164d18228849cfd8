"""Copies of a recording: as if the program had run again, with one line's memory larger, or with
all addresses elsewhere.

A copy is made by handing the recorded requests, some of them larger, to the slow allocator: its
addresses, segments and leftovers are those that PyTorch would have come to, so that a copy differs
from its original as a real second run would.
"""

from __future__ import annotations

import bisect
import copy
import itertools
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

from support.recordings import data_of
from support.replay_oracle import SlowAllocator

Event = dict[str, Any]
Line = tuple[str, int]
"""A file and a line."""


def snapshot_of(name: str) -> dict[str, Any]:
    """A shared recording as PyTorch wrote it."""
    loaded: dict[str, Any] = pickle.loads(data_of(name))
    return loaded


def package_line(event: Event) -> Line | None:
    """The innermost line outside of PyTorch and the interpreter."""
    for frame in event.get("frames", ()):
        file = frame["filename"]
        if "/torch/" not in file and "/lib/python3.12/" not in file.replace(
            "/lib/python3.12/site-packages/", "/"
        ):
            return file, frame["line"]
    return None


def forward_lines(snapshot: dict[str, Any], least_bytes: int = 1 << 20) -> dict[Line, int]:
    """Lines of a model's forward pass and the largest request of each, where that is large
    enough to matter.
    """
    largest: dict[Line, int] = {}
    for event in events_of(snapshot):
        line = package_line(event)
        if (
            event["action"] == "alloc"
            and line is not None
            and any(f["name"] == "_call_impl" for f in event["frames"])
        ):
            largest[line] = max(largest.get(line, 0), event["size"])
    return {line: size for line, size in largest.items() if size >= least_bytes}


def events_of(snapshot: dict[str, Any]) -> Iterator[Event]:
    """All events of all devices."""
    for trace in snapshot["device_traces"]:
        yield from trace


def planted(snapshot: dict[str, Any], line: Line, factor: float = 1.01) -> dict[str, Any]:
    """The run again, with what one line asks for in a module's forward pass larger."""

    def size(event: Event) -> int:
        mine = package_line(event) == line and any(
            frame["name"] == "_call_impl" for frame in event["frames"]
        )
        return round(event["size"] * factor) if mine else event["size"]

    return again(snapshot, size)


def again(snapshot: dict[str, Any], size: Callable[[Event], int]) -> dict[str, Any]:
    """The same requests, of other sizes, through an allocator that begins empty."""
    made = dict(snapshot)
    trace = snapshot["device_traces"][0]
    allocator = SlowAllocator()
    where: dict[int, int] = {}
    for event in trace:
        before = len(allocator.events)
        action, address = event["action"], event["addr"]
        if action == "alloc":
            found = allocator.malloc(size(event), event["stream"])
            assert found is not None
            where[address] = found
        elif action == "free_requested":
            allocator.free(where[address], later=True)
        elif action == "free_completed":
            allocator.complete(where.pop(address))
        for new in allocator.events[before:]:
            new.update(
                {
                    key: value
                    for key, value in event.items()
                    if key not in ("action", "addr", "size")
                }
            )
    recorded = allocator.recording("")
    made["device_traces"] = [allocator.events, *snapshot["device_traces"][1:]]
    made["segments"] = [{**one, "frames": []} for one in recorded["segments"]]
    return made


def shuffled(snapshot: dict[str, Any], seed: int) -> dict[str, Any]:
    """The same run elsewhere in memory and at another time: segments in another order, other
    distances between events.
    """
    rng = random.Random(seed)
    made = copy.copy(snapshot)
    ranges = _ranges(snapshot)
    order = list(ranges)
    rng.shuffle(order)
    shift, at = {}, 1 << 44
    for start in order:
        at += rng.randrange(1, 1 << 10) << 21
        shift[start] = at - start
        at += ranges[start]
    starts = sorted(ranges)

    def moved(address: int) -> int:
        place = bisect.bisect_right(starts, address) - 1
        if place < 0 or address >= starts[place] + ranges[starts[place]]:
            return address
        return address + shift[starts[place]]

    traces, clocks = [], []
    for trace in snapshot["device_traces"]:
        clock, new = rng.randrange(1 << 50), []
        for event in trace:
            clock += rng.randrange(1000, 50_000)
            new.append({**event, "addr": moved(event["addr"]), "time_us": clock})
        traces.append(new)
        clocks.append([event["time_us"] for event in new])
    made["device_traces"] = traces
    made["external_annotations"] = list(_moved_notes(snapshot, clocks[0]))
    made["segments"] = [
        {
            **one,
            "address": moved(one["address"]),
            "blocks": [
                {**b, "address": moved(b["address"])} if "address" in b else b
                for b in one["blocks"]
            ],
        }
        for one in snapshot["segments"]
    ]
    return made


def _moved_notes(snapshot: dict[str, Any], clock: list[int]) -> Iterator[dict[str, Any]]:
    """The marks in time, each between the same events as before and in the same order."""
    old = list(
        itertools.accumulate((event["time_us"] for event in snapshot["device_traces"][0]), max)
    )
    seen: dict[int, int] = {}
    for note in sorted(snapshot.get("external_annotations", ()), key=lambda note: note["time_us"]):
        place = bisect.bisect_right(old, note["time_us"])
        seen[place] = seen.get(place, 0) + 1
        yield {**note, "time_us": (clock[place - 1] if place else clock[0] - 1000) + seen[place]}


def _ranges(snapshot: dict[str, Any]) -> dict[int, int]:
    """Address and size of every stretch of memory that was ever reserved, those that overlap as
    one.
    """
    found = [(one["address"], one["total_size"]) for one in snapshot["segments"]]
    found += [
        (event["addr"], event["size"])
        for event in events_of(snapshot)
        if event["action"] in ("segment_alloc", "segment_map", "segment_free", "segment_unmap")
    ]
    joined: list[list[int]] = []
    for start, size in sorted(found):
        if joined and start < joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], start + size)
        else:
            joined.append([start, start + size])
    return {start: end - start for start, end in joined}
