"""Lines that the interpreter shows to have run often."""

from __future__ import annotations

import sys
import threading

import pytest

from vramlens.live.source.executed_lines import codes_within, executed_lines


class _Store:
    def __init__(self) -> None:
        self.entries: dict[int, int] = {}

    def take(self, key: int, *, is_asked_for: bool) -> None:
        if is_asked_for:
            self.entries.pop(key, None)
        for other in range(key, 0):
            self.entries.pop(other, None)


def _run(store: _Store, times: int) -> None:
    for key in range(times):
        store.take(key, is_asked_for=True)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the interpreter specializes nothing")
def test_only_lines_that_ran_often() -> None:
    first = _Store.take.__code__.co_firstlineno
    asked_for, in_loop = first + 2, first + 4
    assert executed_lines(_Store.take.__code__) == set()
    thread = threading.Thread(target=_run, args=(_Store(), 60))
    thread.start()
    thread.join()
    lines = executed_lines(_Store.take.__code__)
    assert asked_for in lines
    assert in_loop not in lines


def _set_up_once(store: _Store) -> None:
    store.entries.pop(0, None)
    for key in ("a", "b"):
        len(key)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the interpreter specializes nothing")
def test_a_line_that_ran_once() -> None:
    _set_up_once(_Store())
    first = _set_up_once.__code__.co_firstlineno
    assert first + 1 not in executed_lines(_set_up_once.__code__)


def test_functions_within() -> None:
    def outer() -> None:
        def inner() -> None:
            pass

        inner()

    assert [code.co_name for code in codes_within([outer.__code__])] == ["outer", "inner"]
