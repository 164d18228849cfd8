"""Hostile recordings: their names are text in every format, and their numbers break nothing."""

from __future__ import annotations

import csv
import io
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from support.protobuf_reader import fields
from support.recordings import block, event, read, segment, snapshot
from vramlens.errors import InputError, UsageError
from vramlens.export import FORMATS, default_name, export_recording
from vramlens.trace import Trace

EVIL = 'a;b "c",\r\n</script>\x1b[2J\u202e=cmd|1 9\x00{}'
FILES = tuple(name for name, form in FORMATS.items() if not form.is_folder)


def hostile(name: str = EVIL, *, times: tuple[int, int, int] = (1, 2, 3), size: int = 512) -> Trace:
    frames = [
        {"filename": name, "line": 3, "name": name},
        {"filename": name, "line": -1, "name": ""},
    ]
    events = [
        event("alloc", 4096, size, frames=frames, time_us=times[0], user_metadata=name),
        event("alloc", 8192, size, frames=[], time_us=times[1]),
        event("oom", 123, 2**40, frames=frames, time_us=times[2]),
    ]
    blocks = [block(4096, 4096, size), block(8192, 4096, size)]
    marks = [
        {"name": name, "stage": "START", "device": 0, "time_us": times[0]},
        {"name": name, "stage": "START", "device": 0, "time_us": times[1]},
        {"name": "never begun", "stage": "END", "device": 0, "time_us": times[1]},
    ]
    made = snapshot(events, [segment(4096, 8192, blocks)], external_annotations=marks)
    return read(pickle.dumps(made, 4))


def test_names_are_text(exported: Callable[..., bytes]) -> None:
    trace = hostile()
    chrome = json.loads(exported(trace, "chrome"))
    spans = [
        e["name"] for e in chrome["traceEvents"] if e["ph"] == "X" and "</script>" in e["name"]
    ]
    assert len([name for name in spans if not name.startswith("512")]) == 2
    assert all(name.isprintable() for name in spans)
    json.loads(exported(trace, "speedscope"))
    without, named = sorted(exported(trace, "flamegraph").decode().splitlines())
    assert without == "(no stack recorded) 512"
    assert named.count(";") == 1
    rows = list(csv.reader(io.StringIO(exported(trace, "csv").decode(), newline="")))
    assert len({len(row) for row in rows}) == 1
    assert len(rows) == 3
    assert not any("\n" in cell or "\x1b" in cell for row in rows for cell in row)
    assert len(list(fields(exported(trace, "perfetto")))) > 10


@pytest.mark.parametrize("times", [(0, 0, 0), (2**62, 5, -(2**62)), (-5, 3, 2**63 - 1)])
@pytest.mark.parametrize("size", [0, 1, 2**40])
def test_numbers_that_cannot_be(
    times: tuple[int, int, int], size: int, exported: Callable[..., bytes]
) -> None:
    trace = hostile("x.py", times=times, size=size)
    for name in ("perfetto", "chrome", "speedscope", "flamegraph", "csv"):
        assert exported(trace, name) or size == 0
    json.loads(exported(trace, "chrome"))
    json.loads(exported(trace, "speedscope"))
    if times == (0, 0, 0):
        notes = export_recording(trace, "chrome", io.BytesIO()).notes
        assert "no times in the recording" in " ".join(notes)


def test_deep_stacks_and_long_names_stay_small(exported: Callable[..., bytes]) -> None:
    frames = [{"filename": "f" * 5000, "line": i, "name": "g" * 5000} for i in range(3000)]
    events = [event("alloc", 4096 * (i + 1), 512, frames=frames) for i in range(20)]
    blocks = [block(4096 * (i + 1), 4096, 512) for i in range(20)]
    trace = read(pickle.dumps(snapshot(events, [segment(4096, 4096 * 20, blocks)]), 4))
    assert len(exported(trace, "perfetto")) < 3_000_000


def test_a_recording_of_nothing(exported: Callable[..., bytes]) -> None:
    trace = read(pickle.dumps(snapshot([], []), 4))
    for name in FILES:
        with pytest.raises(InputError, match="no GPU memory"):
            exported(trace, name)


def test_a_state_without_events(exported: Callable[..., bytes]) -> None:
    trace = read(pickle.dumps(snapshot([], [segment(4096, 8192, [block(4096, 8192, 8000)])]), 4))
    assert exported(trace, "flamegraph") == b"(no stack recorded) 8000\n"
    rows: list[dict[str, Any]] = list(csv.DictReader(io.StringIO(exported(trace, "csv").decode())))
    assert [(row["born_event"], row["requested_bytes"], row["alive_at_peak"]) for row in rows] == [
        ("", "8000", "true")
    ]
    for name in ("perfetto", "chrome", "speedscope"):
        assert exported(trace, name)


def test_moments_and_devices_that_are_not_there(exported: Callable[..., bytes]) -> None:
    trace = hostile()
    for options in ({"at": "yesterday"}, {"at": "99999"}, {"device": 7}):
        with pytest.raises(UsageError):
            exported(trace, "flamegraph", **options)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("runs/run.vram", "run.folded"),
        ("x.pickle.xz", "x.folded"),
        ("-", "recording.folded"),
        ("a.b.pkl", "a.b.folded"),
        ("dump", "dump.folded"),
        (".pickle", "recording.folded"),
    ],
)
def test_files_are_named_after_the_source(source: str, name: str) -> None:
    assert default_name(source, "flamegraph") == name
