"""A forked copy: it sees what the program held, and the program notices nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.installed import PYTHON_PATH

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="copies are made on Linux")


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    """What a program that copies itself has seen."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(Path(__file__).with_name("copying_program.py"))],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_it_sees_the_variables_of_all_threads(record: dict[str, Any]) -> None:
    for names in record["seen"]:
        assert {"looked_for", "waited_for", "is_over"} <= set(names)


def test_it_runs_nothing_of_the_program_and_keeps_no_file_of_it(record: dict[str, Any]) -> None:
    assert record["hooks"] == 0
    assert record["opened"] <= 2  # its pipe, and the folder that it lists
    assert record["large"] == 3_000_000


def test_the_program_is_as_it_was(record: dict[str, Any]) -> None:
    assert record["after"] == record["before"]
    assert record["left"] == []


def test_what_fails_hangs_or_is_late_is_ended(record: dict[str, Any]) -> None:
    refusals = record["refusals"]
    assert "ZeroDivisionError" in refusals["error"]
    assert "without an answer" in refusals["death"]
    assert "no answer" in refusals["hang"]
    assert "no answer" in refusals["late"]


def test_no_copy_is_made_where_the_program_would_notice(record: dict[str, Any]) -> None:
    assert "hears of each child" in record["refusals"]["handler"]
    assert "take long" in record["refusals"]["large"]
