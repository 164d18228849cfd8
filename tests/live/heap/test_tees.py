"""Halves of a tee: what each has yet to read, and which of them keeps it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from vramlens import LeakWatch
from vramlens.live.heap import tees
from vramlens.live.heap.tees import is_tee, kept_entries, unread_entries
from vramlens.live.leaks.leak_report import LeakReport

torch = pytest.importorskip("torch")


def test_counts() -> None:
    ahead, behind = itertools.tee(range(1000, 2000))
    assert is_tee(ahead)
    assert (kept_entries(ahead), unread_entries(ahead)) == (0, 0)
    for _ in range(130):
        next(ahead)
    next(behind)
    assert (kept_entries(behind), unread_entries(behind)) == (130, 129)
    assert (kept_entries(ahead), unread_entries(ahead)) == (130 - 2 * 57, 0)


def test_the_place_of_the_number_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tees._has_index_there()
    ahead, behind = itertools.tee(range(1000, 2000))
    for _ in range(130):
        next(ahead)
    monkeypatch.setattr(tees, "_INDEX_AT", 0)  # the count of references
    assert not tees._has_index_there()
    monkeypatch.setattr(tees, "_INDEX_AT", 1 << 20)
    assert not tees._has_index_there()
    monkeypatch.setattr(tees, "_IS_INDEX_KNOWN", False)
    assert unread_entries(behind) == 130


def _batches(count: int) -> Iterator[Any]:
    for _ in range(count):
        yield {"images": torch.zeros(4096)}


def test_the_lagging_half_keeps_what_it_has_not_read() -> None:
    for steps in (30, 90):
        report = _read_ahead(steps)
        (leak,) = report.found
        assert leak.verdict == "proven"
        assert leak.owner is not None
        assert (leak.owner.name, leak.owner.kind) == ("preview", "tee")
        assert leak.owner.source == "stream, preview = itertools.tee(_batches(steps + 1))"
        assert leak.bytes_per_step == 4 * 4096
        assert "tee" in leak.fix


def _read_ahead(steps: int) -> LeakReport:
    stream, preview = itertools.tee(_batches(steps + 1))
    next(preview)
    watch = LeakWatch()
    for _ in itertools.islice(stream, steps):
        watch.step()
    return watch.report()


def test_halves_that_are_read_at_the_same_pace() -> None:
    for steps in (30, 90):
        first, second = itertools.tee(_batches(steps))
        watch = LeakWatch()
        for _ in zip(first, second, strict=True):
            watch.step()
        assert not watch.report().found
