"""What an allowance leaves behind in its process."""

from __future__ import annotations

import subprocess
import sys

import pytest

AFTERWARDS = """
import sys

def traced():
    return sum(range(3))

sys.settrace(lambda *_: None)
traced()
print("traced")
"""
IN_TIME = """
from vramlens.allowance import allowance
with allowance():
    pass
"""
TOO_LATE = """
import ctypes, threading
from vramlens import allowance as bounds

def watch(allowed, thread, over):
    over.wait()
    exception = ctypes.py_object(bounds.Exhausted)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)

bounds._watch = watch
with bounds.allowance():
    pass
"""


@pytest.mark.parametrize("within", [IN_TIME, TOO_LATE], ids=["in time", "too late"])
def test_a_function_traced_afterwards_ends(within: str) -> None:
    """Python 3.11 runs a traced function for ever while an exception is thought to be pending."""
    program = [sys.executable, "-c", within + AFTERWARDS]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.stdout, ended.stderr) == ("traced\n", "")
