"""Imports from source text that was sent along, with rests between modules."""

from __future__ import annotations

import importlib
import linecache
import marshal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from vramlens.attach.inside import gentle_imports
from vramlens.attach.inside.gentle_imports import GentleImports
from vramlens.attach.sent_sources import sent_sources

_SOURCES: Mapping[str, tuple[str, bytes]] = {
    "sent": ("__init__.py", b""),
    "sent.first": ("first.py", b"from sent.below import second"),
    "sent.below": ("below/__init__.py", b"from sent.below import third"),
    "sent.below.second": ("below/second.py", b""),
    "sent.below.third": ("below/third.py", b"def of_third():\n    raise KeyError\n"),
}
_INSIDE = """
import marshal, sys
opened = []
sources = marshal.loads(sys.stdin.buffer.read())
names = {"__name__": "elsewhere"}
for name in ("vramlens.capture.process.own_thread", "vramlens.attach.inside.gentle_imports"):
    exec(sources[name][1], names)
sys.addaudithook(lambda event, about: event == "open" and opened.append(str(about[0])))
with names["GentleImports"]("/nowhere", sources, names["wait"]):
    import vramlens.attach.inside.agent
    import vramlens.attach.inside.installation
    import vramlens.attach.inside.state_now
    import vramlens.attach.inside.step_watch
print([path for path in opened if "vramlens" in path or "nowhere" in path])
"""


def _wait(_seconds: float) -> None:
    """No rest."""


class _Rests:
    """The seconds of each piece, and on which threads the rests after them were."""

    def __init__(self) -> None:
        self.pieces_s: list[float] = []
        self.rests: list[tuple[int, float]] = []

    def count(self, seconds: float) -> None:
        self.pieces_s.append(seconds)

    def wait(self, seconds: float) -> None:
        self.rests.append((threading.get_ident(), seconds))


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Modules that a test imported are forgotten."""
    meta_path = list(sys.meta_path)
    yield
    assert sys.meta_path == meta_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "sent"]:
        del sys.modules[name]


def test_modules_lie_where_they_are_said_to_lie() -> None:
    with GentleImports("/folder", _SOURCES, _wait):
        module = importlib.import_module("sent.first")
    assert module.__file__ == "/folder/first.py"
    assert module.second.__name__ == "sent.below.second"
    below = sys.modules["sent.below"]
    assert below.__file__ == "/folder/below/__init__.py"
    assert list(below.__path__) == ["/folder/below"]
    assert below.third.of_third.__code__.co_filename == "/folder/below/third.py"


def test_what_stays_imports_the_rest_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text("from sent import first\n")
    (tmp_path / "first.py").write_text("text = 'of the file'\n")
    with GentleImports(str(tmp_path), _SOURCES, _wait):
        importlib.import_module("sent.first")
    later = importlib.import_module("sent.later")
    assert later.first is sys.modules["sent.first"]
    assert not hasattr(later.first, "text")
    assert linecache.getline(later.first.__file__, 1) == "text = 'of the file'\n"


def test_there_is_a_rest_after_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gentle_imports, "_WORKS_FOR_S", 0.0)
    rests = _Rests()
    with GentleImports("/folder", _SOURCES, rests.wait) as imports:
        importlib.import_module("sent")
        assert rests.rests == []
        with imports.resting(rests.count):
            importlib.import_module("sent.first")
            importlib.import_module("colorsys")  # of another folder
    *pieces_s, _ = rests.pieces_s  # no rest after the last
    rest_s = [min(2 * piece_s, 0.05) for piece_s in pieces_s]
    assert rests.rests == [(threading.get_ident(), seconds) for seconds in rest_s]
    assert len(rest_s) == 4


def test_little_work_needs_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gentle_imports, "_WORKS_FOR_S", 1e9)
    rests = _Rests()
    with (
        GentleImports("/folder", _SOURCES, rests.wait) as imports,
        imports.resting(rests.count),
    ):
        importlib.import_module("sent.first")
    assert rests.rests == []
    assert len(rests.pieces_s) == 1


def test_another_thread_does_not_see_what_was_sent() -> None:
    failed: list[ImportError] = []

    def look() -> None:
        try:
            importlib.import_module("sent.first")
        except ImportError as error:
            failed.append(error)

    thread = threading.Thread(target=look)
    with GentleImports("/folder", _SOURCES, _wait):
        thread.start()
        thread.join()
    assert len(failed) == 1


def test_a_module_that_cannot_be_imported_leaves_python_as_it_was() -> None:
    with (
        pytest.raises(ImportError),
        GentleImports("/folder", _SOURCES, _wait) as imports,
        imports.resting(_Rests().count),
    ):
        importlib.import_module("sent.absent")


def test_all_that_runs_in_the_process_is_sent() -> None:
    """No file of the package is opened, whose folder is not even there."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", _INSIDE],
        input=sent_sources(),
        capture_output=True,
        check=False,
    )
    assert done.stderr.decode() == ""
    assert done.stdout.decode() == "[]\n"


def test_each_module_is_sent_under_its_name() -> None:
    sources = marshal.loads(sent_sources())
    path, source = sources["vramlens.attach.inside.gentle_imports"]
    assert path == "attach/inside/gentle_imports.py"
    assert source == Path(gentle_imports.__file__).read_bytes()
    assert sources["vramlens"][0] == "__init__.py"
    assert sources["vramlens.attach"][0] == "attach/__init__.py"
