"""CSV and Parquet: one row an allocation, the same in both, adding up to the peak."""

from __future__ import annotations

import csv
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.recordings import block, data_of, event, read, segment, snapshot
from support.vram_files import GptMarks, marked, tensors, vram
from vramlens import api
from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.memory.heap import heap_at
from vramlens.export.csv import _quoted


def rows_of(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def number(cell: str) -> int | None:
    return int(cell, 0) if cell else None


def test_a_row_is_an_allocation(view: Attribution, exported: Callable[..., bytes]) -> None:
    device, rows = view.device, view.device.allocations
    found = rows_of(exported(view.trace, "csv", device=device.device))
    count = len(device.events)
    assert len(found) == len(rows)
    for name in ("requested_bytes", "taken_bytes", "address", "stream"):
        assert [number(row[name]) for row in found] == getattr(rows, name).tolist()
    assert [number(row["born_event"]) for row in found] == [
        b if b >= 0 else None for b in rows.born.tolist()
    ]
    assert [number(row["died_event"]) for row in found] == [
        d if d < count else None for d in rows.died.tolist()
    ]
    times = device.clock_us.tolist()
    assert [number(row["born_us"]) for row in found] == [
        times[b] if b >= 0 else None for b in rows.born.tolist()
    ]
    steps = view.step.tolist()
    assert [number(row["step"]) for row in found] == [step if step >= 0 else None for step in steps]


def test_rows_add_up_to_the_heap_at_the_peak(
    view: Attribution, exported: Callable[..., bytes]
) -> None:
    heap = heap_at(view, view.device.requested.peak_event)
    live = [row for row in rows_of(exported(view.trace, "csv")) if row["alive_at_peak"] == "true"]

    def total(**wanted: str) -> int:
        return sum(int(row["requested_bytes"]) for row in live if wanted.items() <= row.items())

    assert total() == heap.requested_bytes == view.device.requested.peak_bytes
    assert {kind: total(category=kind) for kind in heap.by_category} == {
        k: c.bytes for k, c in heap.by_category.items()
    }
    assert {kind: total(phase=kind) for kind in heap.by_phase} == dict(heap.by_phase)
    assert {name: total(region=name) for name in heap.by_region} == dict(heap.by_region)
    for line in heap.by_line:
        where = {
            "file": line.place.file,
            "line": str(line.place.line),
            "function": line.place.function,
        }
        assert total(**where) == line.bytes
        assert total(**where, line_verdict="likely") == line.inferred_bytes
    assert total(file="", line="") == heap.unattributed_bytes


def test_modules_and_names(tmp_path: Path, exported: Callable[..., bytes]) -> None:
    made = marked("found/eval_graph", GptMarks())
    plain = read(data_of("found/eval_graph"))
    last = len(plain.devices[0].events) - 1
    alive = plain.devices[0].allocations.alive_after(last)[:3]
    names = {"entries": tensors(plain, alive, lambda n: f"model.blocks.{n}.weight", "parameter")}
    recording = api.load(vram(tmp_path / "run.vram", made, names=names))
    heap = heap_at(recording.attribution(), recording.devices[0].requested.peak_event)
    found = rows_of(exported(recording, "csv"))
    live = [row for row in found if row["alive_at_peak"] == "true"]
    assert heap.by_module
    for path, size in heap.by_module.items():
        assert sum(int(row["requested_bytes"]) for row in live if row["module"] == path) == size
    view = recording.attribution()
    assert [row["name"] for row in found] == [view.names.name(row) for row in range(len(found))]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("plain", "plain"),
        ("a,b", '"a,b"'),
        ('say "x"', '"say ""x"""'),
        ("=1+1", "'=1+1"),
        ("@SUM(A1),2", '"\'@SUM(A1),2"'),
        ("", ""),
    ],
)
def test_cells_are_text(text: str, cell: str) -> None:
    assert _quoted(text) == cell


def test_parquet_is_the_same_table(
    view: Attribution, exported: Callable[..., bytes], tmp_path: Path
) -> None:
    duckdb: Any = pytest.importorskip("duckdb")
    path = tmp_path / "x.parquet"
    path.write_bytes(exported(view.trace, "parquet"))
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT * FROM '{path}'")
        names, rows = [column[0] for column in found.description], found.fetchall()
        (held,) = connection.execute(
            f"SELECT sum(requested_bytes) FROM '{path}' WHERE alive_at_peak"
        ).fetchone()
    assert held == view.device.requested.peak_bytes

    def text(name: str, value: Any) -> str:
        if value is None:
            return ""
        return (
            str(value).lower()
            if isinstance(value, bool)
            else f"0x{value:x}"
            if name == "address"
            else str(value)
        )

    # The CSV puts an apostrophe before what a spreadsheet would calculate; nothing in these
    # recordings is that.
    in_text = [{n: text(n, value) for n, value in zip(names, row, strict=True)} for row in rows]
    assert in_text == rows_of(exported(view.trace, "csv"))


def test_several_devices_are_in_one_table(exported: Callable[..., bytes]) -> None:
    trace = read(data_of("ranks/wrong_device/wrong_device.rank1"))
    found = rows_of(exported(trace, "csv"))
    by_device = {str(index): len(device.allocations) for index, device in trace.devices.items()}
    assert {index: sum(row["device"] == index for row in found) for index in by_device} == by_device
    assert len([index for index, count in by_device.items() if count]) > 1


def test_without_a_stack_there_is_no_line(exported: Callable[..., bytes]) -> None:
    bare_events = [event("alloc", 4096 * (i + 1), 512, frames=[], time_us=i + 1) for i in range(3)]
    blocks = [block(4096 * (i + 1), 4096, 512) for i in range(3)]
    trace = read(pickle.dumps(snapshot(bare_events, [segment(4096, 4096 * 3, blocks)]), 4))
    found = rows_of(exported(trace, "csv"))
    assert len(found) == 3
    assert {
        row[name] for row in found for name in ("file", "line", "function", "line_verdict")
    } == {""}
