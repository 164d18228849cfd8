"""Threads of vramlens's own: signals that the program blocks and waits for do not end it by them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support.installed import PYTHON_PATH

_WAITS = """
import os, signal, threading
from vramlens.capture.process.own_thread import OwnEvent, OwnThread

ours = OwnEvent()
before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
OwnThread(lambda: ours.wait(60)).start()
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM):
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    os.kill(os.getpid(), number)
    print(signal.sigwait({number}).name)
"""

_RAISES = """
import os, signal, time
from vramlens.capture.process.own_thread import OwnThread

class Late(Exception): pass

def late(*_):
    raise Late

ended = []
signal.signal(signal.SIGALRM, late)
for turn in range(300):
    thread = OwnThread(lambda: ended.append(turn))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + turn % 40))
        thread.start()
        time.sleep(0.01)
    except Late:
        pass
    assert thread.join(10)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
print("whole")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="it has no masks of signals")
@pytest.mark.parametrize(
    ("program", "said"),
    [(_WAITS, "SIGUSR1\nSIGTERM\nSIGINT\nSIGCHLD\nSIGALRM\n"), (_RAISES, "whole\n")],
    ids=["waits", "raises"],
)
def test_signals_are_the_programs(program: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


_FORKS = """
import os, time
from vramlens.capture.process.own_thread import OwnEvent, OwnThread

ended = OwnEvent()
thread = OwnThread(lambda: ended.wait(60))
thread.start()
child = os.fork()
if not child:
    began = time.monotonic()
    os._exit(0 if thread.join(30) and time.monotonic() - began < 10 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), thread.join(0))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_wait_for_a_thread_that_is_not_there() -> None:
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    done = subprocess.run(
        [sys.executable, "-c", _FORKS],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["0", "False"]
