"""Files that killed programs left: they neither hide a live program nor stay for ever."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from vramlens.monitor.machine.inside import (
    SCHEMA,
    SUFFIX,
    inside_path,
    read_insides,
    remove_leftovers,
    start_of,
)

pytestmark = pytest.mark.skipif(start_of(os.getpid()) is None, reason="no /proc here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of 5,000 programs that are gone, and that of this one."""
    tmp_path.chmod(0o700)
    for number in range(5_000):
        (tmp_path / f"{4_000_000 + number}-1{SUFFIX}").touch()
    pid = os.getpid()
    started = start_of(pid)
    assert started is not None
    content = {
        "schema": SCHEMA,
        "pid": pid,
        "started": started,
        "time_us": 1,
        "step": 7,
        "devices": [],
    }
    Path(inside_path(pid, started, str(tmp_path))).write_text(json.dumps(content))
    return tmp_path


def test_a_live_program_is_seen_among_thousands_of_leftovers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(
        os.listdir(folder), key=lambda name: name.startswith(str(os.getpid()))
    )  # the live one is the last
    monkeypatch.setattr(os, "listdir", lambda _folder: names)
    assert [(inside.pid, inside.step) for inside in read_insides([str(folder)])] == [
        (os.getpid(), 7)
    ]


def test_leftovers_are_removed_after_an_hour(folder: Path) -> None:
    old = time.time() - 7200
    for path in sorted(folder.iterdir())[:3_000]:
        os.utime(path, (old, old))
    (folder / "other").touch()
    os.utime(folder / "other", (old, old))
    own = next(path for path in folder.iterdir() if path.name.startswith(f"{os.getpid()}-"))
    os.utime(own, (old, old))
    remove_leftovers(str(folder))
    left = set(folder.iterdir())
    assert {own, folder / "other"} <= left
    assert 2_000 <= len(left) - 2 <= 2_001
