"""The tutorial's programs do what the tutorial says: the leak is found, the fix is clean, the
budget breaks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.installed import PYTHON_PATH

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "examples" / "tutorial"
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def vramlens(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vramlens", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, "PYTHONWARNINGS": ""},
    )


def test_the_leak_is_proven_with_its_owner(tmp_path: Path) -> None:
    report = vramlens("run", "--leaks", PROGRAMS / "leak.py", folder=tmp_path).stderr
    assert "LEAK proven: 64.00 KiB per step, 704.00 KiB so far in 11 steps" in report
    assert "LEAK proven: 64.00 KiB per step, 704.00 KiB so far in 11 steps" in TUTORIAL
    assert "history, a list" in report


def test_the_fix_is_clean(tmp_path: Path) -> None:
    report = vramlens("run", "--leaks", PROGRAMS / "fixed.py", folder=tmp_path).stderr
    assert (
        "No leak: 11 steps watched, 0 bytes in use by tensors now that the program has ended."
        in " ".join(report.split())
    )
    assert (
        "No leak: 11 steps watched, 0 bytes in use by tensors now that the program has ended."
        in TUTORIAL
    )


def test_the_budget_of_the_fix_refuses_the_leak(tmp_path: Path) -> None:
    for name in ("fixed", "leak"):
        done = vramlens("predict", "-o", f"{name}.vram", PROGRAMS / f"{name}.py", folder=tmp_path)
        assert done.returncode == 0, done.stderr
    assert vramlens("check", "fixed.vram", "--update", folder=tmp_path).returncode == 0
    assert 'growth_per_step = "0 B"' in (tmp_path / "vram.toml").read_text()
    assert vramlens("check", "fixed.vram", folder=tmp_path).returncode == 0
    checked = vramlens("check", "leak.vram", folder=tmp_path)
    assert checked.returncode == 1
    assert "growth_per_step    0 bytes  64.00 KiB  over" in checked.stdout
    table = re.findall(r"^  \w+ .*  (?:over .*|ok)$", checked.stdout, re.MULTILINE)
    assert len(table) == 4
    assert [row for row in table if row not in TUTORIAL] == []
