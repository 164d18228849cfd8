"""Asking a running program for a recording: from other surroundings than its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vramlens.capture.triggers import dump_request, user_folder
from vramlens.capture.triggers.dump_request import Peer, ask, owner_of, peer_of
from vramlens.capture.triggers.on_demand import DumpServer
from vramlens.cli.main import main
from vramlens.errors import InputError

pytestmark = pytest.mark.skipif(
    not hasattr(socket, "AF_UNIX"), reason="there are no Unix sockets here"
)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(user_folder.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


@pytest.fixture
def open_scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, into which every user may write."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        monkeypatch.setattr(user_folder.tempfile, "gettempdir", lambda: folder)
        yield Path(folder)


@pytest.fixture
def control() -> Iterator[DumpServer]:
    made = DumpServer(lambda trigger, path, *, redacted: {"path": path or trigger}, lambda: None)
    yield made
    made.stop()


def test_a_program_without_a_runtime_folder_is_found_by_a_shell_that_has_one(
    scratch: Path, control: DumpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a scheduler."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    control.start()
    (scratch / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(scratch / "run"))
    assert ask(os.getpid(), {"path": "/x.vram"}) == {"path": "/x.vram"}
    assert ask(os.getpid(), {}) == {"path": "signal"}


def test_a_program_whose_runtime_folder_is_not_there_can_be_asked(
    scratch: Path,
    control: DumpServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As after ``su``."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(scratch / "run" / "user" / "7"))
    control.start()
    assert os.listdir(scratch) == [f"vramlens-{os.getuid()}"]
    assert ask(os.getpid(), {}) == {"path": "signal"}
    assert capsys.readouterr().err == ""


def test_nobody_is_asked_in_a_folder_that_is_open_to_others(
    scratch: Path, control: DumpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(scratch))
    control.start()
    os.chmod(user_folder.own_folder(), 0o777)
    with pytest.raises(
        InputError, match=f"process {os.getpid()} has nothing to write: it does not run under"
    ):
        ask(os.getpid(), {})


def test_whoever_has_ended_is_not_asked() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(InputError, match=f"process {ended.pid}"):
        ask(ended.pid, {})


@contextlib.contextmanager
def program_that_answers(answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """A program of this user, under this process's number, with an answer of its own."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(dump_request.socket_path(user_folder.prepared_folder(), os.getpid()))
        listener.listen()

        def serve() -> None:
            with listener.accept()[0] as connection, contextlib.suppress(OSError):
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


ODD_ANSWERS = [
    b"",
    b"\n",
    b"null\n",
    b"[]\n",
    b"{}\n",
    b'{"path": 5}\n',
    b'{"path": ["x"]}\n',
    b'{"path": ""}\n',
    b'{"error": {"path": "/x"}}\n',
    b"\xff\n",
    b"[" * 60000 + b"\n",
    b"x" * (1 << 17),
    b'{"path": "' + b"x" * 5000 + b'"}\n',
]


@pytest.mark.parametrize("line", ODD_ANSWERS, ids=lambda line: repr(line[:12]))
def test_an_answer_that_is_none_is_one_clear_line(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(scratch))
    words = r"did not answer|gave an invalid answer"
    with (
        program_that_answers(lambda connection: connection.sendall(line)),
        pytest.raises(InputError, match=words) as refused,
    ):
        ask(os.getpid(), {})
    assert len(str(refused.value)) < 100


def test_an_answer_that_trickles_in_is_given_up(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(scratch))
    monkeypatch.setattr(dump_request, "_ANSWER_WITHIN_S", 0.2)

    def trickle(connection: socket.socket) -> None:
        for _ in range(2000):
            connection.sendall(b" ")
            time.sleep(0.01)

    with program_that_answers(trickle), pytest.raises(InputError, match="did not answer"):
        ask(os.getpid(), {})


@pytest.mark.parametrize("name", ["path", "error"])
def test_an_answer_draws_nothing_on_the_terminal(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(scratch))
    answer = json.dumps({name: "/x\x1b]0;owned\x07\n::error::owned\u202e"}).encode() + b"\n"
    with program_that_answers(lambda connection: connection.sendall(answer)):
        main(["dump", str(os.getpid())])
    out, err = capsys.readouterr()
    assert (out + err).count("\n") == 1
    assert (out + err).strip("\n").isprintable()


LIAR = """
import os, socket, sys
folder, pid, user = sys.argv[1], sys.argv[2], int(sys.argv[3])
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
os.setgroups([])
os.setgid(user)
os.setuid(user)
os.mkdir(folder, 0o700)
listener.bind(os.path.join(folder, (str(os.getpid()) if pid == "own" else pid) + ".sock"))
listener.listen()
print(flush=True)
while True:
    connection = listener.accept()[0]
    connection.recv(1 << 16)
    connection.sendall(b'{"path": "/a/lie"}\\n')
    connection.close()
"""


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program that ends with the block, also where a check in it fails."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        try:
            yield program
        finally:
            program.kill()


@pytest.mark.skipif(
    os.getuid() != 0 or not hasattr(socket, "SO_PEERCRED"), reason="becomes another user"
)
@pytest.mark.parametrize("folder_of", [4711, 0])
def test_root_is_not_answered_by_another_user(
    open_scratch: Path, monkeypatch: pytest.MonkeyPatch, folder_of: int
) -> None:
    """Neither where that user's folder holds a socket named after the process, nor where root's
    own does.
    """
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(user_folder, "is_trusted", lambda folder: True)
    monkeypatch.setattr(dump_request, "is_trusted", lambda folder: True)
    folder = str(open_scratch / f"vramlens-{folder_of}")
    command = [sys.executable, "-I", "-S", "-c", LIAR, folder, str(os.getpid()), "4711"]
    with running(command) as liar:
        assert liar.stdout is not None
        assert liar.stdout.readline() == b"\n"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(dump_request.socket_path(folder, os.getpid()))
            assert peer_of(client) == Peer(liar.pid, 4711)
        with pytest.raises(InputError, match="does not run under vramlens here"):
            ask(os.getpid(), {})


@pytest.mark.skipif(
    os.getuid() != 0 or not hasattr(socket, "SO_PEERCRED"), reason="becomes another user"
)
def test_root_is_answered_by_the_program_that_it_asks(
    open_scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        LIAR,
        str(open_scratch / "vramlens-4711"),
        "own",
        "4711",
    ]
    with running(command) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"\n"
        assert owner_of(program.pid) == 4711
        assert ask(program.pid, {}) == {"path": "/a/lie"}
