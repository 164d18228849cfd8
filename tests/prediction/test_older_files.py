"""What a predicted script removes of what was there before it: nothing."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from vramlens.prediction.card.older_files import OlderFiles


@pytest.fixture
def patched_os(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("remove", "unlink", "rmdir", "mkdir"):
        monkeypatch.setattr(os, name, getattr(os, name))


def checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.pt").write_bytes(b"weights")
    return folder / "model.pt"


@pytest.mark.usefixtures("patched_os")
def test_what_is_older_stays_and_the_program_goes_on(tmp_path: Path) -> None:
    older = checkpoint(tmp_path / "run" / "checkpoint-10")
    OlderFiles(began=time.time() + 60).keep()
    os.remove(older)
    os.unlink(older)
    shutil.rmtree(tmp_path / "run")
    assert older.read_bytes() == b"weights"
    os.mkdir(tmp_path / "run")
    with pytest.raises(FileExistsError):
        os.mkdir(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        os.remove(tmp_path / "absent")


@pytest.mark.usefixtures("patched_os")
def test_what_the_program_wrote_itself_goes(tmp_path: Path) -> None:
    OlderFiles(began=time.time() - 60).keep()
    checkpoint(tmp_path / "run" / "checkpoint-10")
    shutil.rmtree(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    checkpoint(tmp_path / "full")
    with pytest.raises(OSError, match="not empty"):
        os.rmdir(tmp_path / "full")
