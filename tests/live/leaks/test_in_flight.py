"""What is in flight in another thread while the heap is searched, and what C++ code really keeps."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramlens.live.heap.search import Search  # noqa: E402
from vramlens.live.watch import LeakWatch  # noqa: E402

STEPS, WORKERS = 60, 6


class Workers:
    """Threads that each have a tensor on the interpreter's own stack, where nobody can look."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        for _ in range(WORKERS):
            has_begun = threading.Event()
            thread = threading.Thread(target=self._work, args=(has_begun,))
            thread.start()
            self._threads.append(thread)
            has_begun.wait()

    def end(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _work(self, has_begun: threading.Event) -> None:
        self._use(self._made(), has_begun.set(), self._ends.wait())

    def _made(self) -> Any:
        tensor = torch.zeros(4096)
        self.places.append((tensor.data_ptr(), tensor.untyped_storage().nbytes()))
        return tensor

    def _use(self, *_: object) -> None:
        """Is called when the arguments are there."""


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers()
    yield workers
    workers.end()


def test_what_was_made_while_the_heap_was_searched_is_no_leak(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its address was another's before, born in some step long ago."""
    watch = LeakWatch()
    for _ in range(STEPS):
        watch.step()
    search = Search.run

    def search_beside_workers(self: Search, *arguments: Any, **options: Any) -> Search:
        searched = search(self, *arguments, **options)
        workers.begin()
        assert watch._births is not None
        for number, place in enumerate(workers.places, 1):
            watch._births._born[place] = 4 * number
        return searched

    monkeypatch.setattr(Search, "run", search_beside_workers)
    report = watch.report()
    assert workers.places
    assert report.leaks == ()


@pytest.fixture
def kept_ids() -> Iterator[list[int]]:
    """Identities of objects that have one reference more than Python knows of."""
    identities: list[int] = []
    yield identities
    for identity in identities:
        ctypes.pythonapi.Py_DecRef(ctypes.cast(identity, ctypes.py_object))


def test_an_owner_without_a_name_is_told_in_good_words(kept_ids: list[int]) -> None:
    watch = LeakWatch()
    for _ in range(STEPS):
        tensor = torch.zeros(4096)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
        kept_ids.append(id(tensor))
        del tensor
        watch.step()
    text = " ".join(str(watch.report()).split())
    assert "LEAK proven: 16.00 KiB per step" in text
    assert "C++ code, an object that Python cannot see, keeps 1 tensor of every step" in text
    assert "held by a C++ object that Python cannot see > Tensor [4096] float32" in text
    assert "kept by a C++ object that Python cannot see" in text
    assert "Fix: look for C++ code that keeps tensors" in text
    assert "Next: find the C++ code that keeps them and run again" in text
