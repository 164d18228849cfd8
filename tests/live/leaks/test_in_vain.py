"""What is kept for nothing is a leak, also when it has stopped to grow; and limits that look at something
else than what grows.
"""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

from vramlens import LeakWatch
from vramlens.live.growth.births import Births
from vramlens.live.leaks.leak_report import LiveLeak

STEPS, FILLED = 60, 53


class _History:
    """Its mean is of the last few."""

    def __init__(self) -> None:
        self.recent_rows: list[Any] = []

    def add(self) -> Any:
        self.recent_rows.append(torch.zeros(4096))
        return torch.stack(self.recent_rows[-3:]).mean()


class _Table:
    """All of it is read in the end."""

    def __init__(self) -> None:
        self.all_rows: list[Any] = []

    def add(self) -> None:
        self.all_rows.append(torch.zeros(4096))

    def whole(self) -> Any:
        return torch.stack(self.all_rows)


class _Heads(_Table):
    """All of it is read, too; each is a small view."""

    def add(self) -> None:
        self.all_rows.append(torch.zeros(4096)[:8])


def _leak_of(kept: Any, collected_in: int | None = None) -> LiveLeak:
    watch = LeakWatch()
    for step in range(STEPS):
        if step == collected_in:
            gc.collect(0)
        if step < FILLED:
            kept.add()
        watch.step()
    (leak,) = watch.report().leaks
    return leak


def _look_until(last_step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(births: Births, step: int, _kept_seconds: float = 0.0) -> bool:
        if step <= last_step:
            births._look_at_new(step)
        return step <= last_step

    monkeypatch.setattr(Births, "_look_if_there_is_time", look)


@pytest.mark.parametrize(
    ("kept", "verdict", "reason"),
    [
        (_History(), "likely", "only its last entries are read"),
        (_Heads(), "likely", "each entry is a view that needs little of the 16.00 KiB"),
        (_Table(), "possible", "nothing limits it, so what fills it has ended"),
    ],
    ids=["read at its end", "views", "read"],
)
@pytest.mark.parametrize("looked_until", [30, 50, STEPS])
def test_growth_that_has_ended(
    kept: Any, verdict: str, reason: str, looked_until: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there was no time to look at its last steps, as on a busy machine."""
    gc.collect()  # none in the run: what it makes old was not seen to be born
    _look_until(looked_until, monkeypatch)
    leak = _leak_of(copy.deepcopy(kept))
    assert leak.verdict == verdict
    assert f"it has not grown since step {FILLED}" in leak.reason
    assert reason in leak.reason


@pytest.mark.parametrize("kind", [_History, _Heads, _Table])
@pytest.mark.parametrize("collected_in", [29, 30, 31, 45, 52, 53])
def test_growth_that_has_ended_beside_the_collector(
    kind: Any, collected_in: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes old what no look saw: much of it, little, or nothing, as right after the last look."""
    gc.collect()
    _look_until(30, monkeypatch)
    leak = _leak_of(kind(), collected_in)
    assert leak.verdict != "proven"
    assert f"it has not grown since step {FILLED}" in leak.reason


class _Groups:
    """The limit is on its keys."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.groups: dict[int, list[Any]] = {}

    def add(self, key: int) -> None:
        group = self.groups.setdefault(key, [])
        group.append(torch.zeros(4096))
        while len(self.groups) > self.capacity:
            self.groups.pop(next(iter(self.groups)))


def test_a_limit_on_few_keys_is_none_of_what_grows_under_them() -> None:
    kept, watch = _Groups(8), LeakWatch()
    for step in range(120):
        kept.add(step % 2)
        watch.step()
    (leak,) = watch.report().leaks
    assert leak.verdict == "proven"
    assert leak.fix is not None
    assert "(del group[:-n])" in leak.fix


def test_a_limit_on_many_keys_has_its_turn() -> None:
    """Sessions of some turns each: whole sessions go, once there are more."""
    kept, watch = _Groups(40), LeakWatch()
    for step in range(120):
        kept.add(step // 4)
        watch.step()
    (leak,) = watch.report().leaks
    assert leak.verdict != "proven"
    assert "would empty it" in leak.reason


class _Cache:
    """Of what it computed, by number or by name."""

    def __init__(self) -> None:
        self.ready: dict[Any, Any] = {}

    def of(self, key: Any) -> Any:
        if key not in self.ready:
            self.ready[key] = torch.zeros(4096)
        return self.ready[key]


@pytest.mark.parametrize(
    ("steps", "key_of", "verdict"),
    [
        (12, int, "possible"),
        (12, str, "proven"),
        (12, lambda step: step << 30, "proven"),  # seeds
        (40, int, "proven"),
    ],
)
def test_numbers_may_come_again(steps: int, key_of: Any, verdict: str) -> None:
    cache, watch = _Cache(), LeakWatch()
    for step in range(steps):
        cache.of(key_of(step))
        watch.step()
    (leak,) = watch.report().leaks
    assert leak.verdict == verdict
    assert ("a cache by number" in leak.reason) == (verdict == "possible")


class _Sessions:
    """By number; each is over when its request says so, which every third does not."""

    def __init__(self) -> None:
        self.open: dict[int, Any] = {}

    def serve(self, number: int) -> None:
        if number not in self.open:
            self.open[number] = torch.zeros(4096)
        if number % 3:
            del self.open[number]


def test_numbers_that_are_taken_out_do_not_come_again() -> None:
    sessions, watch = _Sessions(), LeakWatch()
    for step in range(75):
        sessions.serve(step)
        watch.step()
    (leak,) = watch.report().leaks
    assert leak.verdict == "likely"
    assert "more comes than goes" in leak.reason or "none of it went" in leak.reason


class _OnHost(_Table):
    """What is moved to the CPU is to be kept there; of a view, little of it."""

    def __init__(self, shown: int) -> None:
        super().__init__()
        self.shown = shown

    def add(self) -> None:
        self.all_rows.append(torch.zeros(4096)[: self.shown].cpu().numpy())


@pytest.mark.parametrize(("shown", "verdict"), [(8, "proven"), (4096, "possible")])
def test_what_is_moved_to_the_host_to_be_kept(shown: int, verdict: str) -> None:
    watch, kept = LeakWatch(), _OnHost(shown)
    for _ in range(STEPS):
        kept.add()
        watch.step()
    (leak,) = watch.report().leaks
    assert leak.verdict == verdict
    assert ("numpy().copy()" in (leak.fix or "")) == (verdict == "proven")
