"""Bounds by what the program counts beside a store: bytes, or the room that is left."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import vramlens  # noqa: E402

BYTES = """
class Cache:
    def __init__(self, limit):
        self.limit, self.used = limit, 0
        self.entries = {}

    def put(self, key, value):
        self.entries[key] = value
        self.used += COUNTED
        while self.used > self.limit:
            self.used -= self.entries.pop(next(iter(self.entries))).nbytes
"""
BEFORE = """
class Cache:
    def __init__(self, limit):
        self.limit, self.used = limit, 0
        self.entries = {}

    def put(self, key, value):
        size = value.nbytes
        while self.entries and not self.used + size <= self.limit:
            self.used = self.used - self.entries.pop(next(iter(self.entries))).nbytes
        self.entries[key] = value
        self.used = self.used + size
"""
ROOM = """
class Cache:
    def __init__(self, limit):
        self.room = limit
        self.entries = {}

    def put(self, key, value):
        if value.nbytes <= self.room:
            self.room -= value.nbytes
            self.entries[key] = value
"""
IN_ONE = """
class Cache:
    def __init__(self, limit):
        self.limit, self.used = limit, 0
        self.entries = {}

    def put(self, key, value):
        self.entries[key], self.used = value, self.used + value.nbytes
        while self.used > self.limit:
            self.used -= self.entries.pop(next(iter(self.entries))).nbytes
"""
LOOP = """
class Cache:
    def __init__(self, limit):
        self.limit, self.begun = limit, 0
        self.entries, self.ahead = {}, []

    def put(self, key, value):
        self.ahead.append(key)
        while self.begun < self.limit and self.ahead:
            self.entries[self.ahead.pop()] = value
            self.begun += 1
"""
POOL = """
class Cache:
    def __init__(self, limit):
        self.limit, self.made = limit, 0
        self.entries, self.filling = {}, self.fill()

    def fill(self):
        while self.made < self.limit:
            self.entries[self.made] = torch.zeros(4096)
            self.made += 1
            yield

    def put(self, key, value):
        next(self.filling)
"""
TRAINING = """
class Trainer:
    def __init__(self, total):
        self.total, self.done = total, 0
        self.history = []

    def run(self):
        while self.done < self.total:
            self.history.append(torch.zeros(4096))
            self.done += 1
            TICK

    def go(self):
        turns = self.run()
        for _ in turns:
            watch.step()
"""
STEPS = 20


@pytest.fixture
def leaks_of(load_program: Callable[..., types.ModuleType]) -> Callable[..., tuple[Any, ...]]:
    """Fills the cache of a program that has not reached its limit."""

    def leaks_of(source: str, limit: int) -> tuple[Any, ...]:
        cache = load_program(source, f"limit_{limit}").Cache(limit)
        watch = vramlens.LeakWatch()
        for step in range(STEPS):
            cache.put(f"key {step}", torch.zeros(4096))
            watch.step()
        return watch.report().leaks

    return leaks_of


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (BYTES.replace("COUNTED", "value.nbytes"), "takes away while self.used > self.limit"),
        (BYTES.replace("COUNTED", "1"), "takes away while self.used > self.limit"),
        (BEFORE, "takes away while self.entries and (not self.used + size <= self.limit)"),
        (ROOM, "it grows only as long as value.nbytes <= self.room holds (line 10)"),
        (IN_ONE, "takes away while self.used > self.limit"),
    ],
    ids=["bytes", "entries", "room is made first", "room that is left", "one assignment"],
)
def test_a_store_within_its_limit(
    leaks_of: Callable[..., tuple[Any, ...]], source: str, reason: str
) -> None:
    (leak,) = leaks_of(source, 1000 if "+= 1\n" in source else 4 << 20)
    assert leak.verdict == "not a problem"
    assert reason in leak.reason


@pytest.mark.parametrize(
    "counted",
    ["0", "-value.nbytes", "value.nbytes * 1000"],
    ids=["never counts", "counts down", "is not kept within the limit"],
)
def test_a_meter_that_does_not_read_what_the_limit_asks_for(
    leaks_of: Callable[..., tuple[Any, ...]], counted: str
) -> None:
    source = BYTES.replace("COUNTED", counted).replace("while self.used", "if 0 and self.used")
    (leak,) = leaks_of(source, 4 << 20)
    assert leak.verdict != "not a problem"


def test_a_removal_at_the_limit_that_takes_nothing(
    leaks_of: Callable[..., tuple[Any, ...]],
) -> None:
    takes = "self.used -= self.entries.pop(next(iter(self.entries))).nbytes"
    assert takes in BYTES
    missing = BYTES.replace(takes, "self.used -= 16384; self.entries.pop(0, None)")
    (leak,) = leaks_of(missing.replace("COUNTED", "value.nbytes"), 16384)
    assert leak.verdict != "not a problem"


def test_a_loop_s_own_counter_is_no_limit(leaks_of: Callable[..., tuple[Any, ...]]) -> None:
    """It says how long the program runs. One that goes down again counts what is there."""
    (leak,) = leaks_of(LOOP, STEPS)
    assert leak.verdict != "not a problem"
    counted = f"{LOOP}\n    def take(self):\n        self.begun -= 1\n"
    (leak,) = leaks_of(counted, STEPS + 1)
    assert "self.begun < self.limit and self.ahead holds" in leak.reason


@pytest.mark.parametrize("tick", ["watch.step()", "yield", "yield self.done"])
def test_the_loop_of_a_training_that_counts_its_steps(
    load_program: Callable[..., types.ModuleType], tick: str
) -> None:
    watch = vramlens.LeakWatch()
    text = TRAINING.replace("TICK", tick)
    trainer = load_program(text, "training", watch=watch).Trainer(STEPS + 1)
    if "yield" in tick:
        trainer.go()
    else:
        trainer.run()
    (leak,) = watch.report().leaks
    assert leak.verdict == "proven"


def test_a_pool_that_one_loop_fills_has_a_limit(leaks_of: Callable[..., tuple[Any, ...]]) -> None:
    """The program asks its generator for one more, and goes on when that has ended."""
    (leak,) = leaks_of(POOL, STEPS + 1)
    assert leak.verdict == "not a problem"
    assert "it grows only as long as self.made < self.limit holds" in leak.reason


def test_a_limit_that_is_far_away(leaks_of: Callable[..., tuple[Any, ...]]) -> None:
    (leak,) = leaks_of(BYTES.replace("COUNTED", "1"), 4 << 20)
    assert leak.verdict == "proven"
    assert "bounded by self.used > self.limit (line 11): " in leak.evidence[1]
    (leak,) = leaks_of(ROOM, 4 << 40)
    assert leak.verdict == "proven"
    assert leak.evidence[1].endswith("4096.00 GiB to come")
