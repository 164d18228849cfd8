"""Who may read what was written: a recording is its owner's alone, a lake follows the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramlens.attach.attachment import _fetched
from vramlens.capture.recording.recording_file import write_recording
from vramlens.fleet.lake.store import LocalStore
from vramlens.whole_file import whole_file


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_recording_is_its_owners_alone(usual_umask: None, tmp_path: Path) -> None:
    path = tmp_path / "run.vram"
    write_recording(str(path), {"segments": []}, {"meta": {}}, None)
    assert mode_of(path) == 0o600
    path.chmod(0o640)  # its owner shares it, and records again
    write_recording(str(path), {"segments": []}, {"meta": {}}, None)
    assert mode_of(path) == 0o640


def test_a_recording_of_attach_is_too(usual_umask: None, tmp_path: Path) -> None:
    (tmp_path / "recording.vram").write_bytes(b"x")
    output = tmp_path / "now.vram"
    _fetched({"recording": "recording.vram"}, tmp_path, str(output))
    assert mode_of(output) == 0o600


def test_other_files_follow_the_umask(usual_umask: None, tmp_path: Path) -> None:
    with whole_file(str(tmp_path / "x.html")) as file:
        file.write(b"x")
    assert mode_of(tmp_path / "x.html") == 0o644


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o027, 0o640)])
def test_files_of_a_lake_follow_the_umask(
    usual_umask: None, tmp_path: Path, umask: int, mode: int
) -> None:
    os.umask(umask)
    with LocalStore(str(tmp_path)).whole("ranks/a.parquet") as scratch:
        Path(scratch).write_bytes(b"x")
    assert mode_of(tmp_path / "ranks" / "a.parquet") == mode
    assert os.listdir(tmp_path / "ranks") == ["a.parquet"]
