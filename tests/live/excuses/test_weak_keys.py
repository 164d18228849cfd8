"""A WeakKeyDictionary: an entry goes with its key, unless it holds the key itself."""

from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")

from vramlens import LeakWatch  # noqa: E402
from vramlens.ground.verdict import Verdict  # noqa: E402

STEPS = 24


class Instrument:
    """What is listed."""


class Book:
    def __init__(self, instrument: Instrument | None) -> None:
        self.instrument = instrument
        self.rows = torch.zeros(4096)


class Desk:
    def __init__(self, *, holds_keys: bool) -> None:
        self.holds_keys = holds_keys
        self.books: weakref.WeakKeyDictionary[Instrument, Book] = weakref.WeakKeyDictionary()

    def open(self, instrument: Instrument) -> None:
        """A book of a new instrument."""
        self.books[instrument] = Book(instrument if self.holds_keys else None)


@pytest.mark.parametrize("holds_keys", [False, True])
def test_entries_that_hold_their_keys_are_a_leak_and_others_are_not(*, holds_keys: bool) -> None:
    desk, listed = Desk(holds_keys=holds_keys), []
    watch = LeakWatch()
    for _ in range(STEPS):
        instrument = Instrument()
        if not holds_keys:
            listed.append(instrument)
        desk.open(instrument)
        watch.step()
    report = watch.report()
    watch.stop()
    (leak,) = (leak for leak in report.leaks if leak.bytes_per_step > 4096)
    assert leak.verdict == (Verdict.PROVEN if holds_keys else Verdict.POSSIBLE)
    assert ("goes when its key does" in leak.reason) is not holds_keys
