"""Imports that let the program's threads run before each module."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramlens.attach.inside.gentle_imports import GentleImports
from vramlens.attach.inside.pauses import Pauses

_MODULES = {
    "__init__": "",
    "first": "from gentle_package.below import second",
    "below/__init__": "from gentle_package.below import third",
    "below/second": "",
    "below/third": "",
}


class _Rests(Pauses):
    """Pauses that count the rests, and on which threads they were."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def rest(self) -> None:
        self.threads.append(threading.get_ident())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The folder of a package that is imported, and whose modules are not."""
    package = tmp_path / "gentle_package"
    for name, text in _MODULES.items():
        path = package / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("gentle_package")
    yield str(package)
    for name in [name for name in sys.modules if name.startswith("gentle_package")]:
        del sys.modules[name]


def test_there_is_a_rest_before_each_module_and_nothing_stays(folder: str) -> None:
    rests = _Rests()
    finders, meta_path = dict(sys.path_importer_cache), list(sys.meta_path)
    with GentleImports([folder], rests):
        module = importlib.import_module("gentle_package.first")
        importlib.import_module("colorsys")  # of another folder
    assert module.second.__name__ == "gentle_package.below.second"
    assert rests.threads == [threading.get_ident()] * 4
    assert rests.total_s > 0
    added = set(sys.path_importer_cache) - set(finders)
    assert not [path for path in added if path.startswith(folder)]
    assert sys.meta_path == meta_path


def test_another_thread_imports_without_a_rest(folder: str) -> None:
    rests = _Rests()
    thread = threading.Thread(target=importlib.import_module, args=("gentle_package.first",))
    with GentleImports([folder], rests):
        thread.start()
        thread.join()
    assert rests.threads == []
    assert "gentle_package.below.third" in sys.modules


def test_a_module_that_cannot_be_imported_leaves_python_as_it_was(folder: str) -> None:
    finder = sys.path_importer_cache.get(folder)
    with pytest.raises(ImportError), GentleImports([folder], _Rests()):
        importlib.import_module("gentle_package.absent")
    assert sys.path_importer_cache.get(folder) is finder
