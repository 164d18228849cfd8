"""The examples run, and print what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_peak_by_line():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "peak_by_line.py"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "tried to allocate 1.25 GiB" in done.stdout
    assert "finetune.py:27 in forward" in done.stdout


@pytest.mark.parametrize(
    ("example", "promise"),
    [
        ("surviving_out_of_memory.py", "Survived 1 out-of-memory error"),
        ("adaptive_batches.py", "none failed"),
    ],
)
def test_recovery(example, promise):
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, EXAMPLES / example],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert promise in done.stdout
