"""How long a large failure takes to be explained, and its verdict in an exception.

    python benchmarks/failure_speed.py [--events 800000]

The failure is made here: a training loop of 2,000 requests a step whose last step needs more than
its limit. Bars: the explanation within 3 s on 2 cores, the verdict of an exception within 2 s.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

from vramlens import explain
from vramlens.program import verdict_of

PAGE = 2 << 20
REQUESTS = 1000
"""In a step; each is given back in it."""
START = 1 << 40


def step_events(frames: list[list[dict[str, Any]]], scale: int) -> list[dict[str, Any]]:
    """The requests of one step, given back in the reverse order."""
    asked = []
    address = START
    for number in range(REQUESTS):
        size = (1 + number % 7) * 512 * scale
        asked.append(made("alloc", address, size, frames[number % len(frames)]))
        address += -(-size // 512) * 512
    given_back = []
    for request in reversed(asked):
        given_back += [
            made(action, request["addr"], request["size"], [])
            for action in ("free_requested", "free_completed")
        ]
    return asked + given_back


def made(action: str, address: int, size: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    """An event as PyTorch writes it."""
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "frames": frames}  # fmt: skip


def failing_snapshot(events: int) -> dict[str, Any]:
    """A snapshot of about so many events that ends in a failure."""
    frames = [
        [
            {"filename": f"layer{number}.py", "line": number, "name": "forward"},
            {"filename": "train.py", "line": 20, "name": "main"},
        ]
        for number in range(40)
    ]
    segment_bytes = 64 * PAGE
    one_step = step_events(frames, 16)
    steps = max(2, events // len(one_step))
    trace = [made("segment_alloc", START, segment_bytes, frames[0])]
    for _ in range(steps):
        trace += [dict(event) for event in one_step]
    last = one_step[: REQUESTS // 2]
    trace += [dict(event) for event in last]
    trace.append({**made("oom", 8 * PAGE, 512 * PAGE, frames[3])})
    blocks, end = [], START
    for event in last:
        blocks.append(block(event["addr"], event["size"], "active_allocated"))
        end = event["addr"] + event["size"]
    blocks.append(block(end, START + segment_bytes - end, "inactive"))
    live_bytes = end - START
    segment = {
        "device": 0, "address": START, "total_size": segment_bytes, "allocated_size": live_bytes,
        "active_size": live_bytes, "requested_size": live_bytes, "stream": 0, "segment_type": "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip
    return {
        "segments": [segment],
        "device_traces": [trace],
        "allocator_settings": {"max_split_size": -1},
    }


def block(address: int, size: int, state: str) -> dict[str, Any]:
    """A block as PyTorch writes it."""
    requested = 0 if state == "inactive" else size
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": []}  # fmt: skip


def main() -> None:
    """Prints seconds of wall time and of all cores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=800_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="failure") as folder:
        path = Path(folder) / "failure.pickle"
        path.write_bytes(pickle.dumps(failing_snapshot(arguments.events), protocol=4))
        print(f"{arguments.events:,} events, {path.stat().st_size / 2**20:.0f} MiB")
        for what, ask in (
            ("explained", lambda: explain(path)),
            ("verdict of an exception", lambda: verdict_of(str(path), "")),
        ):
            wall, cores = time.perf_counter(), time.process_time()
            ask()
            wall, cores = time.perf_counter() - wall, time.process_time() - cores
            print(f"{what}: {wall:.2f} s, {cores:.2f} s of all cores")


if __name__ == "__main__":
    main()
