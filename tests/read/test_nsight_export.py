"""What Nsight Systems exported: kernels, ranges and the driver's allocations, as a trace."""

from __future__ import annotations

import sqlite3

import pytest

import vramlens
from vramlens.cli.main import main

MIB = 1 << 20
MS = 1_000_000
EVENTS = (
    "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INT, globalPid INT, deviceId INT,"
    " contextId INT, address INT, pc INT, bytes INT, memKind INT, memoryOperationType INT,"
    " correlationId INT)"
)


def export(path, events, *, ranges=(), schema=EVENTS):
    """Writes a file as ``nsys export --type sqlite`` does, as far as vramlens reads it."""
    database = sqlite3.connect(path)
    database.execute(schema)
    database.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
    database.executemany(
        "INSERT INTO StringIds VALUES (?, ?)", [(1, "gemm"), (2, "cudaLaunchKernel_v7000")]
    )
    database.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, contextId INT,"
        " streamId INT, correlationId INT, shortName INT)"
    )
    database.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,0,1,7,5,1)", (4 * MS, 8 * MS)
    )
    database.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, nameId INT,"
        " correlationId INT)"
    )
    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,9,2,5)", (3 * MS, 4 * MS))
    database.execute(
        "CREATE TABLE NVTX_EVENTS (start INT, end INT, globalTid INT, text TEXT, textId INT)"
    )
    database.executemany("INSERT INTO NVTX_EVENTS VALUES (?,?,9,?,NULL)", ranges)
    if events:
        database.executemany(
            "INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (?,1,0,1,?,0,?,?,?,0)", events
        )
    database.commit()
    database.close()
    return str(path)


@pytest.fixture
def exported(tmp_path):
    events = [
        (1 * MS, 0x1000, 20 * MIB, 2, 0),
        (2 * MS, 0x9000, 5 * MIB, 1, 0),  # pinned host memory
        (5 * MS, 0x2000, 64 * MIB, 2, 0),
        (9 * MS, 0x2000, 64 * MIB, 2, 1),
    ]
    ranges = [(0, 10 * MS, "Linear"), (2 * MS, 6 * MS, "aten::mm, seq = 3, op_id = 4")]
    return export(tmp_path / "run.sqlite", events, ranges=ranges)


def test_the_drivers_allocations_are_the_memory(exported):
    recording = vramlens.load(exported)
    device = recording.devices[0]
    assert device.requested_curve.tolist() == [20 * MIB, 84 * MIB, 20 * MIB]
    assert any("PyTorch's segments, not tensors" in text for text in recording.missing)


def test_kernels_and_marks_are_its_time(exported, capsys):
    profile = vramlens.explain(exported)
    assert profile.use.busy_ns == 4 * MS
    rows = {row.name: row for row in profile.operators}
    assert rows["aten::mm"].kind == "operator"
    assert rows["aten::mm"].total_device_ns == 4 * MS
    assert rows["Linear"].kind == "region"
    assert main(["leaks", exported]) == 0
    assert main(["explain", exported]) == 0
    assert "memory peaks at 84.00 MiB" in capsys.readouterr().out


def test_an_older_schema_without_kinds_is_read(tmp_path):
    schema = (
        "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INT, globalPid INT, deviceId INT,"
        " contextId INT, address INT, pc INT, bytes INT, ignored INT, memoryOperationType INT,"
        " correlationId INT)"
    )
    path = export(tmp_path / "old.sqlite", [(1, 0x1000, MIB, 0, 0)], schema=schema)
    assert vramlens.load(path).devices[0].requested.peak_bytes == MIB


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "holds no allocation on a GPU"),
        ([(1, 1, 1 << 50, 2, 0)], "in one piece"),
        ([(1 << 62, 1, 5, 2, 0)], "times that no recording has"),
        ([("soon", 1, 5, 2, 0)], "values of other types"),
    ],
)
def test_what_no_machine_has_is_refused_in_one_line(tmp_path, events, message, capsys):
    path = export(tmp_path / "x.sqlite", events)
    assert main(["explain", path]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_other_databases_and_damaged_ones_are_told(tmp_path, exported, capsys):
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE t (x)")
    database.close()
    cut = tmp_path / "cut.sqlite"
    with open(exported, "rb") as file:
        cut.write_bytes(file.read()[:5000])
    for path, message in ((other, "--cuda-memory-usage=true"), (cut, "cannot be read")):
        assert main(["explain", str(path)]) == 3
        assert message in capsys.readouterr().err
