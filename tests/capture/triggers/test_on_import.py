"""Waiting for an import: heard once, seen by nobody, and harmless where the module is missing."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.installed import PYTHON_PATH
from vramlens.capture.triggers.on_import import when_imported


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    for name in [name for name in sys.modules if name.startswith("waited_for")]:
        del sys.modules[name]


def test_heard_once_after_the_module_is_whole(tmp_path: Path) -> None:
    (tmp_path / "waited_for.py").write_text("x = 1\n")
    heard = []
    for number in range(3):
        when_imported(
            "waited_for", lambda number=number: heard.append((number, sys.modules["waited_for"].x))
        )
    before = list(sys.meta_path)
    module = importlib.import_module("waited_for")
    importlib.reload(module)
    assert sorted(heard) == [(0, 1), (1, 1), (2, 1)]
    assert len(sys.meta_path) == len(before) - 3
    assert (
        type(module.__spec__.loader).__name__
        == type(module.__loader__).__name__
        == "SourceFileLoader"
    )
    when_imported("waited_for", lambda: heard.append((3, 1)))
    assert heard[-1] == (3, 1)


def test_a_spec_that_is_only_asked_for_is_no_import(tmp_path: Path) -> None:
    (tmp_path / "waited_for_later.py").write_text("")
    heard = []
    when_imported("waited_for_later", lambda: heard.append(1))
    for _ in range(2):  # transformers and others look whether torch is there
        spec = importlib.util.find_spec("waited_for_later")
        assert spec is not None
        assert spec.loader.get_source("waited_for_later") == ""
    assert heard == []
    importlib.import_module("waited_for_later")
    assert heard == [1]


def test_a_missing_module_stays_missing_and_may_come_later(tmp_path: Path) -> None:
    heard = []
    when_imported("waited_for_too", lambda: heard.append(1))
    when_imported("waited_for_too", lambda: heard.append(2))
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("waited_for_too")
    assert heard == []
    (tmp_path / "waited_for_too.py").write_text("")
    importlib.invalidate_caches()
    importlib.import_module("waited_for_too")
    assert sorted(heard) == [1, 2]


def test_who_is_asking_the_finders_meanwhile_passes_over_none(tmp_path: Path) -> None:
    (tmp_path / "waited_for_now.py").write_text("")
    (tmp_path / "waited_for_beside.py").write_text("")

    class Slow:
        """A finder during whose turn another thread imports what was waited for."""

        def find_spec(self, name: str, _path: object, _target: object = None) -> None:
            if name == "waited_for_beside":
                importlib.import_module("waited_for_now")

    heard: list[int] = []
    sys.meta_path[:] = [Slow(), importlib.machinery.PathFinder]
    when_imported("waited_for_now", lambda: heard.append(1))
    assert importlib.import_module("waited_for_beside").__file__
    assert heard == [1]


def test_what_the_program_may_have_in_its_place_is_not_imported() -> None:
    """``importlib.abc`` of Python 3.13 imports tempfile: a program's own tempfile.py broke it."""
    program = (
        "import sys, vramlens.capture.triggers.on_import; print('importlib.abc' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    command = [sys.executable, "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "False\n"
