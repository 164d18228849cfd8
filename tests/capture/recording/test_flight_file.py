"""NCCL's flight record beside a recording, by a PyTorch that only gives bytes."""

from __future__ import annotations

import os
import pickle
import stat
from pathlib import Path

import pytest

from vramlens.capture.recording import flight_file
from vramlens.capture.recording.flight_file import write_flight_record

RECORD = pickle.dumps({"version": "2.10", "entries": [{"record_id": 0}]})
OLDER = b"of PyTorch, or of another job"


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(flight_file, "rank_of_process", lambda: 3)
    monkeypatch.setattr(flight_file, "_question", lambda: lambda: RECORD)
    return tmp_path / "rank00003.vram"


def test_it_has_pytorchs_name_and_is_its_owners_alone(recording: Path) -> None:
    write_flight_record(str(recording), 0)
    (written,) = recording.parent.iterdir()
    assert written.name == "nccl_trace_rank_3"
    assert written.read_bytes() == RECORD
    assert stat.S_IMODE(written.stat().st_mode) == 0o600


@pytest.mark.parametrize("is_of_this_process", [False, True])
def test_what_pytorch_wrote_for_this_process_stays(
    recording: Path, *, is_of_this_process: bool
) -> None:
    path = recording.parent / "nccl_trace_rank_3"
    path.write_bytes(OLDER)
    began_us = int(os.path.getmtime(path) * 1e6) + (-1_000_000 if is_of_this_process else 1_000_000)
    write_flight_record(str(recording), began_us)
    assert path.read_bytes() == (OLDER if is_of_this_process else RECORD)


def test_a_record_without_calls_is_left_out(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_file, "_question", lambda: lambda: pickle.dumps({"entries": []}))
    write_flight_record(str(recording), 0)
    assert list(recording.parent.iterdir()) == []
