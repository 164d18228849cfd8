"""Ctrl-C, wherever it comes: exit code 130, or KeyboardInterrupt in a program."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.installed import PYTHON_PATH
from support.recordings import DATA
from vramlens._apart import call_apart
from vramlens.cli import interruption
from vramlens.cli.main import main
from vramlens.cli.verbs.reading import explain

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "interrupts.py"


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def default_handler():
    """A shell starts what runs in its background with SIGINT ignored, and that is inherited."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_call_has_ended_when_the_interrupt_is_raised():
    is_stopped, events, results = threading.Event(), [], []

    def work():
        press_ctrl_c()
        assert is_stopped.wait(300)
        press_ctrl_c()  # impatient
        events.append("ended")
        return "handle"

    with pytest.raises(KeyboardInterrupt):
        call_apart(work, is_stopped.set, results.append)
    assert events == ["ended"]
    assert results == ["handle"]  # handed to what frees it


def test_work_that_could_not_begin_never_begins(monkeypatch):
    begun = []

    class Late(threading.Thread):
        def start(self):
            self.late = threading.Timer(0.02, self.run)
            self.late.start()
            threads.append(self.late)
            raise KeyboardInterrupt

    threads = []
    monkeypatch.setattr(threading, "Thread", Late)
    with pytest.raises(KeyboardInterrupt):
        call_apart(lambda: begun.append(1), lambda: None, lambda _: None)
    monkeypatch.undo()
    for thread in threads:
        thread.join()
    assert not begun


def test_what_the_work_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        call_apart(lambda: 1 / 0, lambda: None, lambda _: None)


def swallowed(_arguments) -> int:
    with contextlib.suppress(KeyboardInterrupt):
        press_ctrl_c()
        signal.pause()
    return 0


def turned_into_another_error(_arguments) -> int:
    try:
        press_ctrl_c()
        signal.pause()
    except KeyboardInterrupt:
        raise ImportError("numpy could not be imported") from None
    return 0


@pytest.mark.parametrize("verb", [swallowed, turned_into_another_error])
def test_an_interrupt_is_no_answer_whatever_became_of_it(verb, monkeypatch, capsys):
    monkeypatch.setattr(explain, "run", verb)
    assert main(["explain", "run.vram"]) == 130
    assert capsys.readouterr() == ("", "")


def test_ctrl_c_is_pythons_own_again_afterwards(capsys):
    main(["explain", "nothing.vram"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert sys.unraisablehook is sys.__unraisablehook__
    assert not interruption.came()


@pytest.mark.slow
def test_random_moments():
    """A few of the 200 that benchmarks/interrupts.py makes."""
    done = subprocess.run(
        [sys.executable, BENCHMARK, DATA / "recordings" / "gpt_varlen.pickle.xz", "--tries", "8"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
    )
    assert done.returncode == 0, done.stdout + done.stderr
