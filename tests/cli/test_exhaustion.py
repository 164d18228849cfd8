"""Files made to take all memory or all time: one line and exit code 3, or an answer within the
allowance.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import time
import zipfile
from pathlib import Path

import pytest

from support.recordings import DATA, event, snapshot
from vramlens import allowance as allowances
from vramlens.allowance import Allowance, Exhausted, allowance
from vramlens.cli.main import main
from vramlens.errors import InputError, UnsafeInput
from vramlens.read.json_bounds import refuse_costly
from vramlens.read.opened_source import open_source

MIB = 1 << 20


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line with which the command line refuses."""
    assert main(list(arguments)) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def _endless(*_arguments: object, **_options: object) -> None:
    while True:
        pass


def _take_all(allowed: Allowance, taken: list[bytearray]) -> None:
    allowed.count_file("x.vram", 1)
    while True:
        taken.append(bytearray(8 * MIB))
        time.sleep(0.005)


# ---- the allowance ---------------------------------------------------------------------


def test_it_grows_with_the_input() -> None:
    allowed = Allowance()
    assert allowed.most_bytes == 200_000_000
    allowed.count_file("a", 1_000_000)
    allowed.count_file("a", 1_000_000)  # looked at twice, counted once
    allowed.count_file("b", 500_000)
    allowed.count_expanded(500_000)
    assert allowed.input_bytes == 2_000_000
    assert allowed.most_bytes == 211_000_000
    assert allowed.most_seconds == pytest.approx(14.0)
    allowed.count_file("-", None)
    assert allowed.most_seconds == pytest.approx(614.0)


def test_what_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowances, "SECONDS", 0.2)
    with pytest.raises(Exhausted), allowance() as allowed:
        _endless()
    assert "more than 0 s of the processor" in allowed.sentence()


@pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="the system does not say what a process takes"
)
def test_what_takes_too_much_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowances, "MEMORY_BYTES", allowances._LIBRARIES_BYTES + 64 * MIB)
    taken: list[bytearray] = []
    with pytest.raises(Exhausted), allowance() as allowed:
        _take_all(allowed, taken)
    assert len(taken) < 200
    assert allowed.sentence().startswith("x.vram: takes more than 137 MB of memory")


def test_a_page_that_is_served_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowances, "SECONDS", 0.01)
    with allowance() as allowed:
        allowances.release()
        ends = time.process_time() + 0.2
        while time.process_time() < ends:
            pass
    assert allowed.reason == ""


def test_a_verb_without_end_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from vramlens import api

    monkeypatch.setattr(allowances, "SECONDS", 0.2)
    monkeypatch.setattr(api, "explain_recording", _endless)
    file = tmp_path / "run.pickle"
    file.write_bytes(pickle.dumps(snapshot([event("alloc", 2**40, 512)], [])))
    assert "of the processor, which no recording of" in refused(capsys, "explain", str(file))


# ---- what is no file -------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no such devices")
def test_devices_and_named_pipes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is a device" in refused(capsys, "explain", "/dev/zero")
    for verb in ("explain", "leaks", "view", "ranks"):
        assert "is a named pipe" in refused(capsys, verb, str(tmp_path / "pipe"))


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="no such folder")
def test_a_pipe_that_a_shell_has_opened_is_read() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"CUDA out of memory")
    os.close(writing)
    try:
        with open_source(f"/dev/fd/{reading}") as source:
            assert source.stream.read() == b"CUDA out of memory"
    finally:
        os.close(reading)


def test_a_link_to_itself_and_a_file_that_may_not_be_read_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop.vram").symlink_to("loop.vram")
    for verb in ("explain", "leaks", "view", "ranks"):
        assert "loop.vram" in refused(capsys, verb, str(tmp_path / "loop.vram"))
    file = tmp_path / "nccl_trace_rank_0"
    file.write_text("{}")

    def forbidden(path: object, *_arguments: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", forbidden)
    for verb in ("explain", "view", "ranks"):
        assert "permission denied" in refused(capsys, verb, str(file))


# ---- small files that would become large -----------------------------------------------


def test_json_is_weighed_before_it_is_read(tmp_path: Path) -> None:
    refuse_costly(
        json.dumps({"tensors": [{"device": 0, "address": "0x1", "bytes": 512}] * 100_000}).encode()
    )
    for part in (b"[],", b"{},", b"1,"):
        with pytest.raises(ValueError, match="more than"):
            refuse_costly(b"[" + part * 4_000_000 + b"1]")
    record = b'{"version":"2","pg_config":{},"entries":[' + b"[]," * 4_000_000 + b"{}]}"
    path = tmp_path / "nccl_trace_rank_0.json"
    path.write_bytes(record)
    from vramlens.read.flight_record import read_flight_record

    with pytest.raises(UnsafeInput, match="would take"):
        read_flight_record(path)


def test_members_that_would_take_too_much_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.vram"
    rows = ",".join(["[1,1,1]"] * 1_500_000)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "snapshot.pickle", pickle.dumps(snapshot([event("alloc", 2**40, 512)], []))
        )
        archive.writestr(
            "samples.json", f'{{"columns":["time_us","device","allocated_bytes"],"rows":[{rows}]}}'
        )
    assert main(["explain", str(file), "--json"]) == 0
    missing = json.loads(capsys.readouterr().out)["recording"]["missing"]
    assert any("samples.json cannot be read" in sentence for sentence in missing)


def test_what_expands_out_of_proportion_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.log.gz"
    file.write_bytes(gzip.compress(b"\n" * (17 * MIB)))
    assert "expands more than 100 times" in refused(capsys, "explain", str(file))


def test_more_devices_than_pytorch_is_built_for_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = snapshot([], [])
    value["device_traces"] = [[event("alloc", 2**40, 512)]] * 1024
    file = tmp_path / "run.pickle"
    file.write_bytes(pickle.dumps(value))
    for verb in ("explain", "view", "leaks"):
        assert "claims 1,024 devices" in refused(capsys, verb, str(file))


# ---- jobs and traces -------------------------------------------------------------------


def test_a_rank_that_no_job_has_is_no_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = pickle.dumps(snapshot([event("alloc", 2**40, 512)], []))
    for name in ("rank0.pickle", "rank9999999.pickle"):
        (tmp_path / name).write_bytes(data)
    assert main(["ranks", str(tmp_path), "--json"]) == 0
    out = capsys.readouterr().out
    assert len(out) < 100_000
    assert json.loads(out)["missing"] == []


def test_a_trace_with_memory_and_no_spans_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"Device Type": 1, "Device Id": 0, "Bytes": 512, "Addr": 1, "Total Allocated": 512}
    memory = {"ph": "i", "name": "[memory]", "ts": 1, "pid": 1, "tid": 1, "args": arguments}
    freed = memory | {"ts": 9, "args": arguments | {"Bytes": -512, "Total Allocated": 0}}
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [memory, freed]}))
    assert main(["explain", str(file), "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["profile"]["memory"]
    assert device["allocated_bytes"] == 512


def test_no_link_of_a_folder_ends_the_comparison(tmp_path: Path) -> None:
    from vramlens.fleet import compare_files

    (tmp_path / "rank1.vram").symlink_to("rank1.vram")
    (tmp_path / "rank0.vram").write_bytes((DATA / "captured" / "steps.vram").read_bytes())
    assert [one.rank for one in compare_files([tmp_path]).ranks] == [0]


def test_an_empty_folder_of_ranks_is_one_line(tmp_path: Path) -> None:
    from vramlens.fleet import compare_files

    with pytest.raises(InputError, match="contains no recording"):
        compare_files([tmp_path])
