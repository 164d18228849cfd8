"""Asking a running program for a recording: from other surroundings than its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramlens.capture import user_folder
from vramlens.capture.control import Control, ask
from vramlens.errors import InputError

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no Unix sockets here")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(user_folder.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


@pytest.fixture
def control() -> Iterator[Control]:
    made = Control(lambda trigger, path: {"path": path or trigger}, lambda: None)
    yield made
    made.stop()


def test_a_program_without_a_runtime_folder_is_found_by_a_shell_that_has_one(
    scratch: Path, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a scheduler."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    control.start()
    (scratch / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(scratch / "run"))
    assert ask(os.getpid(), {"path": "/x.vram"}) == {"path": "/x.vram"}
    assert ask(os.getpid(), {}) == {"path": "signal"}


def test_a_program_whose_runtime_folder_is_not_there_can_be_asked(
    scratch: Path, control: Control, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after ``su``."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(scratch / "run" / "user" / "7"))
    control.start()
    assert os.listdir(scratch) == [f"vramlens-{os.getuid()}"]
    assert ask(os.getpid(), {}) == {"path": "signal"}
    assert capsys.readouterr().err == ""


def test_nobody_is_asked_in_a_folder_that_is_open_to_others(
    scratch: Path, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(scratch))
    control.start()
    os.chmod(user_folder.own_folder(), 0o777)
    with pytest.raises(InputError, match=f"process {os.getpid()} does not run under vramlens here"):
        ask(os.getpid(), {})
