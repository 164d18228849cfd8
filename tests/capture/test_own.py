"""Threads and sockets of vramlens's own: the program neither sees them nor loses anything to
them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from support.programs import PLUG_IN, python
from vramlens.capture.process import own_thread
from vramlens.capture.process.own_socket import OwnSocket
from vramlens.capture.process.own_thread import OwnEvent, OwnThread

HEAD = (
    PLUG_IN
    + "from vramlens.capture.recording.recorder import Recorder; Recorder.mark_modules = lambda self: None\n"
)
STUB = "class OutOfMemoryError(RuntimeError): pass\nfrom . import optim\n"


def write_program(folder: Path, text: str) -> None:
    """A program whose torch is none, so that it starts at once."""
    hook = "register_optimizer_step_post_hook = lambda hook: None\n"
    files = {"torch/__init__.py": STUB, "torch/optim/__init__.py": "from . import optimizer\n"}
    files |= {
        "torch/optim/optimizer.py": hook,
        "train.py": HEAD + "import os, sys, threading, time, torch\n" + text,
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def test_a_thread_is_not_among_the_programs() -> None:
    before, is_over, seen = threading.enumerate(), OwnEvent(), []
    thread = OwnThread(lambda: (seen.append(thread.is_current), is_over.wait(60)))
    thread.start()
    assert threading.enumerate() == before
    assert not thread.join(0.01)
    assert not thread.is_current
    is_over.set()
    is_over.set()
    assert thread.join(60)
    assert seen == [True]


def test_a_thread_knows_itself_before_its_start_has_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start_new_thread, seen, is_over = own_thread._start_new_thread, [], OwnEvent()

    def start_and_wait(run: object, arguments: object) -> int:
        ident: int = start_new_thread(run, arguments)
        is_over.wait(60)
        return ident

    monkeypatch.setattr(own_thread, "_start_new_thread", start_and_wait)
    thread = OwnThread(lambda: (seen.append(thread.is_current), is_over.set()))
    thread.start()
    assert thread.join(60)
    assert seen == [True]


def test_an_error_in_a_thread_ends_it_alone(capfd: pytest.CaptureFixture[str]) -> None:
    thread = OwnThread(lambda: 1 / 0)
    thread.start()
    assert thread.join(60)
    assert capfd.readouterr().err == ""


def test_a_thread_that_cannot_start_can_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(own_thread, "_start_new_thread", refuse)
    thread = OwnThread(lambda: None)
    with pytest.raises(RuntimeError):
        thread.start()
    assert thread.join(60)


def test_a_socket_whose_number_is_another_files_is_left_alone() -> None:
    one, other = socket.socketpair()
    own = OwnSocket(one)
    own.send(b"a")
    assert other.recv(9) == b"a"
    number = own.descriptor
    assert number is not None
    programs, peer = socket.socketpair()
    os.dup2(programs.fileno(), number)  # the program closes it and opens another
    peer.send(b"the program's")
    own.send(b"x")
    own.drain()
    assert own.accept() is None
    own.close()
    peer.setblocking(False)
    with pytest.raises(BlockingIOError):
        peer.recv(9)
    assert os.read(number, 99) == b"the program's"
    os.close(number)
    for end in (other, programs, peer):
        end.close()


def test_a_program_that_joins_all_threads_ends(tmp_path: Path) -> None:
    text = (
        "gpu.use()\n"
        "for thread in threading.enumerate():\n"
        "    if thread is not threading.main_thread(): thread.join()\n"
        "while threading.active_count() > 1: time.sleep(0.01)\nprint('alone')\n"
    )
    write_program(tmp_path, text)
    done = python(tmp_path, "-m", "vramlens", "run", "-o", "run.vram", "train.py")
    assert (done.stdout, done.returncode) == ("alone\n", 0)
    assert (tmp_path / "run.vram").exists()


def test_dump_does_not_wait_for_a_forked_child(tmp_path: Path) -> None:
    """It has the parent's sockets, and nobody answers there."""
    write_program(
        tmp_path,
        "gpu.use()\nif not os.fork():\n    time.sleep(60); os._exit(0)\n"
        "print(os.getpid(), flush=True)\ntime.sleep(60)\n",
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": ""}
    process = subprocess.Popen(
        [sys.executable, "-m", "vramlens", "run", "train.py"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        pid = process.stdout.readline().strip().decode()
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
        began = time.monotonic()
        done = python(tmp_path, "-m", "vramlens", "dump", pid)
        assert (done.returncode, done.stderr.count("\n")) == (3, 1)
        assert "it may have ended" in done.stderr
        assert time.monotonic() - began < 60
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()  # type: ignore[union-attr]


def test_spawned_children_that_do_nothing_say_nothing(tmp_path: Path) -> None:
    """DataLoader workers, managers, resource trackers."""
    text = (
        "import multiprocessing\n"
        "def work(): import torch\n"
        "if __name__ == '__main__':\n"
        "    children = [multiprocessing.get_context('spawn').Process(target=work) for _ in range(2)]\n"
        "    for child in children: child.start()\n"
        "    for child in children: child.join()\n"
    )
    write_program(tmp_path, text)
    for options in ([], ["--leaks"], ["--profile", "--steps", "1:2"]):
        done = python(tmp_path, "-m", "vramlens", "run", *options, "train.py")
        assert done.returncode == 0
        parents_own = 2 if options == ["--leaks"] else 1
        assert done.stderr.count("vramlens: ") == parents_own, done.stderr


def test_a_pipe_as_output_is_refused_before_the_program_runs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.vram")
    write_program(tmp_path, "print('ran')\n")
    done = python(tmp_path, "-m", "vramlens", "run", "-o", "pipe.vram", "train.py")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/urandom", "-"])
def test_a_device_without_an_end_is_refused(name: str) -> None:
    with open("/dev/zero", "rb") as endless:
        done = subprocess.run(
            [sys.executable, "-m", "vramlens", "explain", name],
            stdin=endless, capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": ""},
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    assert "is a device" in done.stderr
    assert done.stderr.count("\n") == 1
