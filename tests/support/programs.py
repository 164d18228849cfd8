"""Running small programs under vramlens in processes of their own, with a GPU that is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from support.installed import PYTHON_PATH

HERE = Path(__file__).parent
PLUG_IN = f"import sys; sys.path.insert(0, {str(HERE)!r}); from fake_gpu import plug_in; gpu = plug_in()\n"
"""The first line of a program that finds the fake GPU; ``gpu.use()`` is its first use."""


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a Python process does in a folder."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, "PYTHONWARNINGS": "", **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def run_program(
    folder: Path, text: str, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What ``vramlens run OPTIONS train.py`` does with a program of this text."""
    (folder / "train.py").write_text(text)
    return python(folder, "-m", "vramlens", "run", *options, "train.py", **environment)


def recordings(folder: Path) -> list[str]:
    """The names of the recordings in a folder, and of anything else that was left behind."""
    return sorted(
        path.name for path in folder.iterdir() if path.name not in ("train.py", "__pycache__")
    )


def meta_of(path: Path) -> dict[str, object]:
    """What a recording says about itself."""
    with zipfile.ZipFile(path) as archive:
        meta: dict[str, object] = json.loads(archive.read("meta.json"))
    return meta
