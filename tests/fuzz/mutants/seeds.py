"""The real files that mutants are made from, cut to what is quick to read."""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "data"
_MOST_EVENTS, _MOST_ENTRIES, _MOST_SEGMENTS = 250, 40, 12
_CAPTURED = ("oom_forward", "graphs", "ddp-rank0", "steps")
BUDGET = {
    "budget": {
        "peak_allocated": "20 GiB",
        "peak_requested": "20 GiB",
        "peak_active": 21_474_836_480,
        "peak_reserved": "24GB",
        "growth_per_step": "1 MiB",
        "alloc_retries": 0,
        "out_of_memory": 0,
        "fragmentation": 0.2,
        "tolerance": 0.02,
        "module": {"model.layers": {"peak": "8 GiB"}},
        "line": {"train.py:12": {"peak": "8 GiB"}},
        "category": {"activations": {"peak": "8 GiB"}},
        "phase": {"forward": {"peak": "8 GiB"}},
        "recorded": {"train.py:12 step": "1 MiB"},
    }
}
ERROR = {
    "message": {
        "message": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "extraInfo": {
            "py_callstack": 'Traceback\n  File "/srv/train.py", line 12, in step\n    loss.backward()\n',
            "timestamp": "1700000000",
        },
    }
}


@cache
def traces() -> list[Any]:
    """Traces of PyTorch's profiler."""
    found = []
    for path in sorted((DATA / "profiler").glob("*.json.gz")):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        events = trace["traceEvents"]
        memory = [event for event in events if event.get("name") == "[memory]"][: _MOST_EVENTS // 4]
        found.append(trace | {"traceEvents": events[:_MOST_EVENTS] + memory})
        found.append({"traceEvents": memory})
    return found


@cache
def flights() -> list[Any]:
    """NCCL's flight records."""
    found = []
    for path in sorted((DATA / "ranks").glob("*/*.nccl.pickle.xz"))[:6]:
        record = pickle.loads(lzma.decompress(path.read_bytes()))  # our own data
        found.append(record | {"entries": record["entries"][:_MOST_ENTRIES]})
    return found


@cache
def members() -> list[dict[str, Any]]:
    """What ``.vram`` files hold: the snapshot as bytes, every other part as values."""
    found = []
    for name in _CAPTURED:
        with zipfile.ZipFile(DATA / "captured" / f"{name}.vram") as archive:
            found.append(
                {
                    member: archive.read(member)
                    if member.endswith(".pickle")
                    else json.loads(archive.read(member))
                    for member in archive.namelist()
                }
            )
    return found


@cache
def snapshots() -> list[Any]:
    """Bare snapshots as values."""
    found = []
    for path in sorted((DATA / "captured").glob("*.vram"))[:4]:
        with zipfile.ZipFile(path) as archive:
            value = pickle.loads(archive.read("snapshot.pickle"))  # our own data
        value["segments"] = value["segments"][:_MOST_SEGMENTS]
        value["device_traces"] = [events[:_MOST_EVENTS] for events in value["device_traces"]]
        found.append(value)
    return found


@cache
def texts() -> list[str]:
    """Errors' texts."""
    return [message["text"] for message in json.loads((DATA / "oom_messages.json").read_text())]
