"""Lines that the interpreter shows to have run often."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from vramlens.live.source.executed_lines import codes_within, executed_lines
from vramlens.live.source.users_source import UsersSource


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
    never_run = _Store.take.__code__.replace(co_name="never_run")  # other tests may have run it
    assert executed_lines(never_run) == set()
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


class _Queue:
    def __init__(self) -> None:
        self.finished = 0

    def tick(self, waiting: dict[int, Any], key: int) -> None:
        try:
            next(waiting[key])
        except StopIteration:
            del waiting[key]
            self.finished += 1
        except ValueError:
            del waiting[0]
        del waiting[-1]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the interpreter specializes nothing")
def test_a_line_that_led_to_one_that_ran_often() -> None:
    """The interpreter has one way of deleting only: no instruction of such a line shows it."""
    queue = _Queue()
    for key in range(200):
        queue.tick({key: iter(()), -1: None}, key)
    first = _Queue.tick.__code__.co_firstlineno
    shown = executed_lines(_Queue.tick.__code__)
    assert {first + 4, first + 5} <= shown
    assert first + 7 not in shown  # no other way led there
    assert first + 8 not in shown  # nothing comes after it


def test_functions_within() -> None:
    def outer():
        def inner():  # no annotations: of them Python 3.14 makes a function of its own
            pass

        inner()

    assert [code.co_name for code in codes_within([outer.__code__])] == ["outer", "inner"]


class _Order(list[Any]):
    """What a search reached; counts the objects that are handed out."""

    handed_out = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        self.handed_out += len(part)
        return part


class _Search:
    """A search that reached some objects, and whose time may be over."""

    def __init__(self, order: _Order) -> None:
        self.order, self.is_over = order, False
        self.roots: dict[int, Any] = {}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the interpreter specializes nothing")
def test_all_files_are_looked_for_in_one_walk_over_what_was_reached() -> None:
    _run(_Store(), 60)
    line = _Store.take.__code__.co_firstlineno + 2
    search: Any = _Search(_Order([_Store.take, *({} for _ in range(10_000))]))
    source = UsersSource(search)
    assert source.shows_runs(__file__, line, line)
    for number in range(20):
        assert not source.shows_runs(f"/nowhere/{number}.py", 1, 9)
    assert search.order.handed_out == len(search.order)


def test_the_walk_ends_with_the_time_of_the_search() -> None:
    search: Any = _Search(_Order([_Store.take, *({} for _ in range(10_000))]))
    search.is_over = True
    assert not UsersSource(search).shows_runs(__file__, 1, 100)
    assert not search.order.handed_out
