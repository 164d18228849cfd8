"""The shared recordings, and snapshots made for one test."""

from __future__ import annotations

import gc
import io
import json
import lzma
import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from support.oracle import MIB, PENDING, Lifetimes
from vramlens.read.snapshot import read_snapshot
from vramlens.trace import Trace

DATA = Path(__file__).parents[1] / "data"
ALL = sorted(
    str(path.relative_to(DATA)).removesuffix(".pickle.xz")
    for folder in ("recordings", "ranks", "replay")
    for path in (DATA / folder).rglob("*.pickle.xz")
    if not path.name.endswith(".nccl.pickle.xz")
)
"""Every recording, as its path under tests/data without the ending."""
SMALL = [name for name in ALL if (DATA / f"{name}.pickle.xz").stat().st_size < 100_000]
"""Those of at most a few thousand events."""


@cache
def data_of(name: str) -> bytes:
    """A recording's pickle."""
    return lzma.decompress((DATA / f"{name}.pickle.xz").read_bytes())


def truth_of(name: str) -> dict[str, Any]:
    """What the allocator itself said at the end of the run."""
    truth: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return truth


@contextmanager
def collector_off() -> Iterator[None]:
    """Without the cyclic collector: unpickling a million dicts takes a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def read(data: bytes) -> Trace:
    """The Trace of a pickle."""
    return read_snapshot(io.BytesIO(data), "test")


_SlowPickler: Any = vars(pickle)["_Pickler"]  # the one written in Python


def dump_slowly(value: Any, protocol: int = 4) -> bytes:
    """What the pickler written in Python makes of a value."""
    out = io.BytesIO()
    _SlowPickler(out, protocol).dump(value)
    return out.getvalue()


class _OneByOne(_SlowPickler):  # type: ignore[misc]
    """Writes every dict one key at a time, and every list one item at a time."""

    def _batch_setitems(self, items: Iterable[tuple[Any, Any]], *_: Any) -> None:
        for key, value in items:
            self.save(key)
            self.save(value)
            self.write(pickle.SETITEM)

    def _batch_appends(self, items: Iterable[Any], *_: Any) -> None:
        for item in items:
            self.save(item)
            self.write(pickle.APPEND)


def dump_one_by_one(value: Any, protocol: int = 4) -> bytes:
    """A pickle whose containers are filled one item at a time."""
    out = io.BytesIO()
    _OneByOne(out, protocol).dump(value)
    return out.getvalue()


def event(action: str, addr: int = 0, size: int = 0, **more: Any) -> dict[str, Any]:
    """An event as PyTorch writes it."""
    frames = [{"filename": "train.py", "line": 7, "name": "step"}]
    return {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": 0,
        "time_us": 1,
        "frames": frames,
        "compile_context": "N/A",
    } | more


def segment(address: int, size: int, blocks: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A segment as PyTorch writes it."""
    live = [b for b in blocks if b["state"] != "inactive"]
    return {
        "device": 0,
        "address": address,
        "total_size": size,
        "allocated_size": sum(b["size"] for b in live if b["state"] not in PENDING),
        "active_size": sum(b["size"] for b in live),
        "requested_size": sum(b["requested_size"] for b in live),
        "stream": 0,
        "segment_type": "large" if size > 2 * MIB else "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    } | more


def block(
    address: int, size: int, requested: int, state: str = "active_allocated", **more: Any
) -> dict[str, Any]:
    """A block as PyTorch writes it."""
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": [],
    } | more


def snapshot(
    events: list[dict[str, Any]], segments: list[dict[str, Any]], **more: Any
) -> dict[str, Any]:
    """A snapshot of one device."""
    return {
        "segments": segments,
        "device_traces": [events],
        "allocator_settings": {"max_split_size": -1},
    } | more


def final_segments(life: Lifetimes, device: int = 0) -> list[dict[str, Any]]:
    """The segments that PyTorch would list where ``life`` ends: mapped ranges that touch are
    one.
    """
    joined: list[list[Any]] = []
    for r in sorted(life.mapped.values(), key=lambda r: r.address):
        last = joined[-1] if joined else None
        if last and r.mapped and last[3] and last[1] == r.address and last[2] == r.stream:
            last[1] += r.size
        else:
            joined.append([r.address, r.address + r.size, r.stream, r.mapped])
    found = []
    for start, end, stream, mapped in joined:
        blocks, at = [], start
        for a in sorted(
            (a for a in life.live.values() if start <= a.address < end), key=lambda a: a.address
        ):
            if at < a.address:
                blocks.append(block(at, a.address - at, 0, "inactive"))
            given_up = a.free_requested < a.died
            frames = [{"filename": f, "line": n, "name": name} for f, n, name in a.stack or ()]
            blocks.append(
                block(
                    a.address,
                    a.taken,
                    a.requested,
                    PENDING[0] if given_up else "active_allocated",
                    frames=frames,
                )
            )
            at = a.address + a.taken
        if at < end:
            blocks.append(block(at, end - at, 0, "inactive"))
        found.append(
            segment(start, end - start, blocks, stream=stream, is_expandable=mapped, device=device)
        )
    return found
