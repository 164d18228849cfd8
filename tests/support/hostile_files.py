"""Files in which every text is hostile: real recordings, logs, traces, flight records, budgets,
with EVIL in each string.
"""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.recordings import DATA

MARK = "FORGED"
EVIL_LINE = (
    f"\x1b[2J\x1b]0;{MARK}\x07\x9b1m\x1bP1$r{MARK}\x1b\\\x08\x7f\u202e\u2066{MARK}\u2069\u200b\ufeff"
    f"</script></textarea><img src=x onerror=alert('{MARK}')>\"'`{MARK}`|{MARK}|@{MARK} ::error::{MARK} ##[error]{MARK}"
)
"""What a text may hold that stays on its line."""
EVIL = (
    f"{EVIL_LINE}\r\n::error file=x::{MARK}\n::set-output name=x::{MARK}\n##vso[task.{MARK}]\n```\n\n# {MARK}\n\n"
    f"~~~\n<h1>{MARK}</h1>\n\u2028{MARK}\x85{MARK}\x0b{MARK}\x00"
)
_KEPT = {"action", "state", "segment_type", "schema", "stage", "kind", "ph", "cat"}
"""Fields of a closed vocabulary: with another word in them the rest would not be read."""
Mangle = Callable[[str], str]
MANGLES: dict[str, Mangle] = {
    "around": lambda text: EVIL + text + EVIL,
    "long": lambda text: text + EVIL_LINE * 15,
}


def hostile(value: Any, mangle: Mangle, *, kept: frozenset[str] = frozenset()) -> Any:
    """A value with EVIL in each of its texts; what was one object stays one."""
    done: dict[int, Any] = {}

    def changed(value: Any, key: object = None) -> Any:
        if isinstance(value, str):
            return value if key in _KEPT or key in kept else mangle(value)
        if not isinstance(value, (dict, list, tuple)):
            return value
        if id(value) not in done:
            if isinstance(value, dict):
                done[id(value)] = {name: changed(part, name) for name, part in value.items()}
            else:
                done[id(value)] = type(value)(changed(part, key) for part in value)
        return done[id(value)]

    return changed(value)


def hostile_recording(source: str, target: Path, mangle: Mangle, **meta: Any) -> Path:
    """A ``.vram`` file of the tests' data, every text of every member hostile."""
    with (
        zipfile.ZipFile(DATA / source) as old,
        zipfile.ZipFile(target, "w", compresslevel=1) as new,
    ):
        for name in old.namelist():
            if name.endswith(".pickle"):
                new.writestr(name, pickle.dumps(hostile(pickle.loads(old.read(name)), mangle), 4))
                continue
            content = hostile(json.loads(old.read(name)), mangle)
            if name == "meta.json":
                settings = {f"PYTORCH_CUDA_ALLOC_CONF{EVIL}": EVIL, **content.get("settings", {})}
                groups = [{"name": EVIL, "description": EVIL, "ranks": [[0, 2, 1]]}]
                content |= {
                    "settings": settings,
                    "groups": groups,
                    "ending": EVIL,
                    "command": [EVIL, EVIL],
                } | meta
            new.writestr(name, json.dumps(content))
    return target


def hostile_snapshot(source: str, target: Path, mangle: Mangle) -> Path:
    """A bare PyTorch snapshot with hostile texts, and regions."""
    made = hostile(pickle.loads(lzma.decompress((DATA / source).read_bytes())), mangle)
    times = [
        event["time_us"] for trace in made["device_traces"] for event in trace if "time_us" in event
    ]
    regions = [{"name": EVIL, "stage": stage, "device": 0, "time_us": at} for stage, at in
               (("START", min(times)), ("END", max(times)))] if times else []  # fmt: skip
    made["external_annotations"] = regions
    target.write_bytes(pickle.dumps(made, 4))
    return target


def hostile_flight(source: str, target: Path, mangle: Mangle) -> Path:
    """A flight record of NCCL with hostile texts."""
    record = pickle.loads(lzma.decompress((DATA / source).read_bytes()))
    made = hostile(record, mangle, kept=frozenset({"version", "ranks", "state"}))
    target.write_bytes(pickle.dumps(made, 4))
    return target


def hostile_trace(source: str, target: Path, mangle: Mangle) -> Path:
    """A trace of PyTorch's profiler with hostile texts."""
    trace = json.loads(gzip.decompress((DATA / source).read_bytes()))
    target.write_text(json.dumps(hostile(trace, mangle)))
    return target


def hostile_log(target: Path) -> Path:
    """A training log that ends in an out-of-memory error, with hostile names in all of its
    lines.
    """
    name = EVIL_LINE.replace('"', "")
    target.write_text(
        f"""{EVIL}
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/x/{name}.py", line 12, in {name}
[rank3]:     {EVIL_LINE}
[rank3]:   File "/home/x/train.py", line 14, in forward{name}
[rank3]:     loss = model(x)  {EVIL_LINE}
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB \
of which 1.00 GiB is free. Process 123 has 10.00 GiB memory in use. Including non-PyTorch memory, this process has \
68.00 GiB memory in use. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by \
PyTorch but unallocated. If reserved but unallocated memory is large try setting {name}
{EVIL}
""",
        encoding="utf-8",
    )
    return target


def hostile_budget(target: Path) -> Path:
    """A budget whose names are hostile, and which no recording keeps."""
    names = [EVIL, EVIL_LINE, f"::error::{MARK}", f"```\n{MARK}", "x" * 5000]
    parts = [
        f"[budget.{part}.{json.dumps(name)}]\npeak = 1\n"
        for name in names
        for part in ("module", "line")
    ]
    target.write_text(f'[budget]\npeak_allocated = "1 KiB"\nout_of_memory = 0\n{"".join(parts)}')
    return target


def hostile_error(target: Path, mangle: Mangle) -> Path:
    """An error file of torchrun."""
    stack = f'Traceback\n  File "x{EVIL_LINE.replace(chr(34), "")}", line 3, in f{EVIL_LINE}\n'
    more = {"py_callstack": stack, "timestamp": "1790000000"}
    target.write_text(
        json.dumps({"message": {"message": mangle("RuntimeError: x"), "extraInfo": more}})
    )
    return target
