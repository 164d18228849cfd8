"""Removals that wait for a length which is long passed, or that take less than comes."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

FLUSHED = """\
class Hints:
    def __init__(self, window):
        self.window = window
        self.staged_hints = []

    def add(self, number):
        self.staged_hints.append(torch.zeros(4096) + number)
        if number % 5 == 4:
            self.staged_hints.append(torch.zeros(4096) - number)
        if {condition}:
            self.staged_hints.clear()

store = Hints(5)
"""
TRIMMED = """\
from collections import OrderedDict

class Tiles:
    def __init__(self, most):
        self.most = most
        self.drawn_tiles = OrderedDict()

    def add(self, number):
        self.drawn_tiles[number] = torch.zeros(4096) + number
        if number % {every} == 0:
            self.drawn_tiles[-1 - number] = torch.zeros(4096) - number
        if len(self.drawn_tiles) > self.most:
            self.drawn_tiles.popitem(last=False)

store = Tiles(8)
"""


@pytest.fixture
def leaks_of(load_program: Callable[..., types.ModuleType]) -> Callable[..., Any]:
    """The sure leaks of a program whose ``store.add(number)`` is called in each of 120 steps."""

    def leaks_of(source: str) -> Any:
        program = load_program(source)
        watch = vramlens.LeakWatch()
        for number in range(120):
            program.store.add(number)
            watch.step()
        report = watch.report()
        watch.stop()
        return [leak for leak in report.leaks if leak.sure]

    return leaks_of


def test_a_length_that_was_jumped_over_excuses_nothing(leaks_of: Callable[..., Any]) -> None:
    (leak,) = leaks_of(FLUSHED.format(condition="len(self.staged_hints) == self.window"))
    assert (leak.verdict, leak.owner.name) == ("proven", "Hints.staged_hints")


@pytest.mark.parametrize("order", [">= self.window", "== 600"])
def test_a_length_that_comes_is_an_excuse(leaks_of: Callable[..., Any], order: str) -> None:
    assert leaks_of(FLUSHED.format(condition=f"len(self.staged_hints) {order}")) == []


def test_an_eviction_that_takes_less_than_comes_is_told(leaks_of: Callable[..., Any]) -> None:
    (leak,) = leaks_of(TRIMMED.format(every=1))
    assert (leak.verdict, leak.owner.name) == ("likely", "Tiles.drawn_tiles")
    assert "line 13 takes an entry out above 8, but it has 124" in leak.reason


def test_an_eviction_that_keeps_up_is_a_bound(leaks_of: Callable[..., Any]) -> None:
    assert leaks_of(TRIMMED.format(every=1000)) == []
