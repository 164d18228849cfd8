"""``vramlens explain`` without a FILE: what is piped in is read, and nothing else ever keeps it
waiting.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from support.installed import PYTHON_PATH
from support.recordings import DATA
from vramlens.cli import input as cli_input
from vramlens.cli.main import main
from vramlens.read import opened_source

ERROR = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has 1 GiB\n"
)


class Stdin:
    """Something with a descriptor, as ``sys.stdin`` is."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def fileno(self) -> int:
        return self.descriptor


@pytest.fixture
def given(monkeypatch):
    def has_input(descriptor: int, patience_s: float = 0.05) -> bool:
        monkeypatch.setattr(sys, "stdin", Stdin(descriptor))
        return cli_input.has_input(patience_s)

    return has_input


def test_a_file_with_something_left_in_it_is_input(given, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(ERROR)
    (tmp_path / "empty").write_bytes(b"")
    with open(tmp_path / "log", "rb") as log, open(tmp_path / "empty", "rb") as empty:
        assert given(log.fileno())
        assert os.lseek(log.fileno(), 0, os.SEEK_CUR) == 0
        os.lseek(log.fileno(), 0, os.SEEK_END)
        assert not given(log.fileno())
        assert given(empty.fileno())  # to be refused


def test_a_pipe_that_speaks_is_input_and_nothing_is_taken_from_it(given) -> None:
    for read, write in (os.pipe(), tuple(end.detach() for end in socket.socketpair())):
        began = time.monotonic()
        assert not given(read)  # open, and silent
        assert time.monotonic() - began > 0.04
        os.write(write, ERROR)
        assert given(read)
        os.close(write)
        assert given(read)
        assert os.read(read, 1000) == ERROR
        began = time.monotonic()
        assert given(read, 30)  # ended: to be refused, at once
        assert time.monotonic() - began < 20
        os.close(read)


def test_devices_and_closed_streams_are_no_input(given, monkeypatch) -> None:
    with open(os.devnull, "rb") as null:
        assert not given(null.fileno(), 30)
    master, terminal = os.openpty()
    os.write(master, b"typed\n")
    assert not given(terminal, 30)
    for descriptor in (master, terminal):
        os.close(descriptor)
    assert not given(terminal)  # closed
    monkeypatch.setattr(sys, "stdin", None)
    assert not cli_input.has_input()


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells what the parent reads from"
)
def test_what_the_parent_reads_from_is_left_alone() -> None:
    """A shell that reads its script from a pipe: explain must not take the rest of the script."""
    script = (
        b"f() { " + sys.executable.encode() + b' -c "from vramlens.cli.input import has_input;'
        b' print(has_input(30))"; }\nf\necho x | { read y; f; }\necho the rest\n'
    )
    done = subprocess.run(
        ["bash"],
        input=script,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        timeout=300,
        check=True,
    )
    assert done.stdout.split(b"\n") == [b"False", b"False", b"the rest", b""]


def explain(**options) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    command = [sys.executable, "-m", "vramlens", "explain"]
    return subprocess.run(
        command, env=environment, capture_output=True, timeout=300, check=True, **options
    )


def test_a_log_that_is_piped_in_is_explained() -> None:
    done = explain(input=b"step 1\n" + ERROR)
    assert b"tried to allocate 256.00 MiB" in done.stdout
    assert done.stderr == b""


@pytest.mark.parametrize("verb", ["explain", "leaks"])
def test_a_recording_that_is_piped_in_is_read(verb: str, tmp_path: Path) -> None:
    recording = DATA / "captured/steps.vram"
    command = [sys.executable, "-m", "vramlens", verb, "--json"]
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, "TMPDIR": str(tmp_path)}
    run = partial(subprocess.run, env=environment, capture_output=True, timeout=300, check=True)
    piped = json.loads(run([*command, "-"], input=recording.read_bytes()).stdout)
    named = json.loads(run([*command, str(recording)]).stdout)
    assert piped["leaks"] == named["leaks"]
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_that_gives_too_much_of_an_archive_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(opened_source, "MOST_PIPED_BYTES", 5_000)
    read, write = os.pipe()
    os.write(write, (DATA / "captured/steps.vram").read_bytes()[:6_000])
    os.close(write)
    with open(read, encoding="latin-1") as standard_input:
        monkeypatch.setattr(sys, "stdin", standard_input)
        assert main(["leaks", "-"]) == 3
    assert "gives more than 5,000 bytes; pass the file name" in capsys.readouterr().err


def test_an_empty_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with open(tmp_path / "empty", "rb") as empty:
        for options in ({"input": b""}, {"stdin": empty}):
            with pytest.raises(subprocess.CalledProcessError) as failed:
                explain(**options)
            assert failed.value.returncode == 3
            assert failed.value.stderr == b"vramlens: standard input: is empty\n"
            assert failed.value.stdout == b""


def test_without_input_the_example_is(monkeypatch, capsys) -> None:
    assert b"the example that ships with vramlens" in explain(stdin=subprocess.DEVNULL).stderr
    read, write = os.pipe()
    monkeypatch.setattr(cli_input.has_input, "__defaults__", (0.05,))
    monkeypatch.setattr(sys, "stdin", Stdin(read))
    signal.alarm(60)
    assert main(["explain"]) == 0
    signal.alarm(0)
    assert "the example that ships with vramlens" in capsys.readouterr().err
    for descriptor in (read, write):
        os.close(descriptor)


def test_an_output_alone_is_no_reason_to_read(capsys, monkeypatch, tmp_path: Path) -> None:
    """``-o run.vram`` may be meant as FILE: what it names is not written over."""
    read, write = os.pipe()
    os.write(write, ERROR)
    monkeypatch.setattr(sys, "stdin", Stdin(read))
    assert main(["explain", "-o", str(tmp_path / "x")]) == 2
    assert not (tmp_path / "x").exists()
    assert "no FILE was given" in capsys.readouterr().err
    for descriptor in (read, write):
        os.close(descriptor)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells what the parent reads from"
)
def test_a_script_hands_its_input_to_explain(tmp_path: Path) -> None:
    script = tmp_path / "explain.sh"
    script.write_text(f"{sys.executable} -m vramlens explain\necho done\n")
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    done = subprocess.run(
        ["bash", script], input=ERROR, capture_output=True, timeout=300, check=True, env=environment
    )
    assert b"tried to allocate 256.00 MiB" in done.stdout
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("command", "passes"),
    [
        (["timeout", "20", "vramlens", "explain"], True),
        (["/bin/bash", "ci.sh"], True),
        (["bash", "-ec", "vramlens explain"], True),
        (["-bash"], False),
        (["bash", "-e"], False),
        (["python", "driver.py"], False),
        ([], False),
    ],
)
def test_a_parent_that_reads_no_input_itself_passes_it_on(command: list[str], passes: bool) -> None:
    assert cli_input._passes_its_input_on(command) is passes
