"""Where redaction may be asked for: of a recorder, of one recording, of a block, of everything."""

from __future__ import annotations

import json
import os
import socket
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support.fake_gpu import FakeGpu
from support.programs import python
from vramlens import program
from vramlens.capture.recording.output_path import RecordingPaths
from vramlens.capture.recording.recorder import Recorder, WriteRequest
from vramlens.capture.recording.redact import is_redaction_wanted
from vramlens.capture.triggers import dump_request, user_folder
from vramlens.capture.triggers.on_demand import DumpServer
from vramlens.cli.main import main

SECRET = "sk-SECRET-4711"


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.delenv("VRAMLENS_REDACT", raising=False)
    made = Recorder(
        RecordingPaths(str(tmp_path / "run.vram"), None), command=["t.py", "--key", SECRET]
    )
    gpu: Any = FakeGpu()
    gpu.use()
    made.gpu = gpu
    return made


def meta_of(path: str) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        assert all(b"sk-SECRET" not in archive.read(name) for name in archive.namelist()) == (
            "redacted" in json.loads(archive.read("meta.json"))
        )
        meta: dict[str, Any] = json.loads(archive.read("meta.json"))
        return meta


@pytest.mark.parametrize(
    ("variable", "asked", "is_wanted"),
    [
        (None, None, False),
        ("1", None, True),
        ("0", None, False),
        ("", None, False),
        ("1", False, False),
        (None, True, True),
    ],
)
def test_the_environment_is_the_default(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, asked: bool | None, is_wanted: bool
) -> None:
    monkeypatch.delenv("VRAMLENS_REDACT", raising=False)
    if variable is not None:
        monkeypatch.setenv("VRAMLENS_REDACT", variable)
    assert is_redaction_wanted(asked) is is_wanted


def test_one_recording_may_be_redacted_and_the_next_not(recorder: Recorder) -> None:
    recorder.start()
    assert meta_of(recorder.write(WriteRequest("api", redacted=True))["path"])["redacted"]
    assert "redacted" not in meta_of(recorder.write(WriteRequest("api"))["path"])
    with recorder.redacting(True):
        assert meta_of(recorder.write(WriteRequest("api"))["path"])["redacted"]
    assert "redacted" not in meta_of(recorder.write(WriteRequest("api"))["path"])
    recorder.redact()
    assert meta_of(recorder.write(WriteRequest("api"))["path"])["redacted"]


class SessionStand:
    """A session of which only the recorder is needed."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder


def test_snapshot_takes_redact(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "current_session", lambda: SessionStand(recorder))
    path = str(tmp_path / "now.vram")
    assert program.snapshot(path, redact=True) == path
    assert meta_of(path)["redacted"]
    monkeypatch.setenv("VRAMLENS_REDACT", "1")
    assert program.snapshot(path) == path
    assert meta_of(path)["redacted"]
    assert program.snapshot(path, redact=False) == path
    assert "redacted" not in meta_of(path)


def test_install_and_record_take_redact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans = []
    monkeypatch.setattr(program, "_watch", plans.append)
    program.install(redact=True)
    with program.record(tmp_path / "x.vram", redact=True):
        pass
    assert plans[0].redacted


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no Unix sockets here")
def test_dump_asks_for_redaction_and_tells_an_older_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VRAMLENS_REDACT", raising=False)
    monkeypatch.setattr(user_folder.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    asked = []

    def dump(trigger: str, path: str | None, *, redacted: bool) -> dict[str, Any]:
        asked.append(redacted)
        return {"path": "/x.vram", **({dump_request.REDACTED: "yes"} if knows[0] else {})}

    knows = [True]
    server = DumpServer(dump, lambda: None)
    server.start()
    try:
        assert main(["dump", str(os.getpid()), "--redact"]) == 0
        assert main(["dump", str(os.getpid())]) == 0
        knows[0] = False
        assert main(["dump", str(os.getpid()), "--redact"]) == 3
    finally:
        server.stop()
    assert asked == [True, False, True]
    assert "older vramlens, which wrote /x.vram unredacted" in capsys.readouterr().err


def test_a_prediction_is_redacted(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text("import torch\nx = torch.ones(1 << 20, device='cuda')\n")
    words = ["predict", "-o", "p.vram", "--redact", "train.py", "--config", SECRET]
    done = python(tmp_path, "-m", "vramlens", *words)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout
    assert "train.py:2" in done.stdout
    meta = meta_of(str(tmp_path / "p.vram"))
    assert meta["redacted"]
    assert "command" not in meta
    with zipfile.ZipFile(tmp_path / "p.vram") as archive:
        assert str(tmp_path).encode() not in b"".join(map(archive.read, archive.namelist()))
