"""The example runs, with a GPU or without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_monitor_thread() -> None:
    pytest.importorskip("torch")
    example = Path(__file__).parents[2] / "examples" / "monitor_thread.py"
    done = subprocess.run(
        [sys.executable, example, "5"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1]
    assert "5 steps" in done.stdout
    assert "Host: at most " in done.stdout
