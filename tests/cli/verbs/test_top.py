"""``vramlens top`` on a real terminal: SIGTERM ends it as ``q`` does, and the terminal is as it
was.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

import pytest

from support.installed import PYTHON_PATH

pytest.importorskip("textual")
pty = pytest.importorskip("pty")
termios = pytest.importorskip("termios")

# The leader of a session gets the terminal that it opens.
_PROGRAM = (
    "import os, sys; os.open(os.ttyname(0), os.O_RDWR);"
    "from vramlens.cli.main import main; code = main(['top']); print('code', code); sys.exit(code)"
)


def _read_until(terminal: int, mark: bytes | None, before: bytes = b"") -> bytes:
    """What comes from a terminal until a mark is in it, or until it is closed."""
    found, end = before, time.monotonic() + 300
    while (mark is None or mark not in found) and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                found += os.read(terminal, 1 << 16)
            except OSError:  # Linux says so where nobody has the other side open
                break
        elif mark is None:
            break
    return found


def test_sigterm_with_sigcont_gives_the_terminal_back():
    terminal, inner = pty.openpty()
    before = termios.tcgetattr(inner)
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, "TERM": "xterm"},
    )
    try:
        seen = _read_until(terminal, b"?1049h")  # the screen of its own
        seen = _read_until(terminal, b"GPU", seen)
        assert termios.tcgetattr(inner)[3] != before[3]
        program.send_signal(signal.SIGTERM)
        program.send_signal(signal.SIGCONT)
        seen = _read_until(terminal, b"code ", seen)
        assert program.wait(300) == 0
        seen += _read_until(terminal, None)
        after = termios.tcgetattr(inner)
    finally:
        program.kill()
        program.wait()
        os.close(inner)
        os.close(terminal)
    assert b"Traceback" not in seen
    assert b"Error" not in seen
    assert b"?1049l" in seen
    assert after == before
