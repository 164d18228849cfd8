"""Fifteen of the small programs, on the oldest and the newest Python at hand;
benchmarks/harmless.py runs all of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from users_programs.harness import MODES, Harness, Program, compare_all, read_programs

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="what a program finds around itself is read from /proc"
)

FEW = [program for program in read_programs() if "few" in program.options]


def pythons() -> list[str]:
    """The oldest and the newest Python at hand that have what vramlens needs, and this one."""
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    places = [shutil.which(f"python3.{minor}") for minor in range(10, 15)]
    places += [str(path) for path in root.glob("versions/3.1[0-9].*/bin/python")]
    able = {_version(place): place for place in places if place and _version(place)}
    able[sys.version_info[:2]] = sys.executable
    return [able[version] for version in sorted({min(able), max(able), sys.version_info[:2]})]


def _version(python: str) -> tuple[int, int] | None:
    """A Python's version; None where it lacks what vramlens needs."""
    code = "import sys, numpy, rich, psutil; print(*sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    words = done.stdout.split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else None


def test_there_are_enough_programs() -> None:
    assert len(read_programs()) >= 120
    assert len(FEW) == 15


def test_programs_are_what_they_are_without_vramlens(tmp_path: Path) -> None:
    harnesses = [Harness(python, tmp_path) for python in pythons()]
    results = compare_all(harnesses, FEW, MODES, jobs=2)
    assert [result for result in results if result.faults] == []
    assert len(results) >= 60


def test_a_difference_is_seen(tmp_path: Path) -> None:
    """The harness itself: a program that does see whether it is watched."""
    watched = Program(
        "watched",
        "import sys, os; print('vramlens' in sys.modules)\n",
        options={"modes": "run,install"},
    )
    results = list(Harness(sys.executable, tmp_path).compare(watched, MODES))
    assert [len(result.faults) for result in results] == [1, 1]
