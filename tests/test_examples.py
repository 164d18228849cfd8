"""The examples run, and print what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_peak_by_line():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "peak_by_line.py"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "256.00 MiB wanted" in done.stdout
    assert "train/workloads.py:39 in forward" in done.stdout
