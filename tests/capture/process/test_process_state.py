"""What is said of processes that cannot be asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from vramlens.capture.process.process_state import python_descendants, why_not_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
_SLEEPS = "import time; print('ready', flush=True); time.sleep(60)"


def test_a_wrappers_python_is_named() -> None:
    words = ["sh", "-c", f'"{sys.executable}" -S -c "{_SLEEPS}"; true']
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as wrapper:
        assert wrapper.stdout is not None
        wrapper.stdout.readline()
        pythons = python_descendants(wrapper.pid)
        for pid in pythons:
            os.kill(pid, signal.SIGKILL)
    assert len(pythons) == 1
    assert python_descendants(wrapper.pid) == []


def test_a_stopped_process_and_a_zombie_are_told() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert why_not_running(process.pid) == ""
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert f"kill -CONT {process.pid}" in why_not_running(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert f"process {os.getpid()} has to collect" in why_not_running(process.pid)
    finally:
        process.kill()
        process.wait()
    assert why_not_running(process.pid) == ""
