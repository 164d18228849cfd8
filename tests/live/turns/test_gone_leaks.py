"""What was seen to grow and is gone at the end: how certain a leak it still is."""

from __future__ import annotations

import asyncio
import sys

import pytest

pytest.importorskip("torch")
from vramlens.ground.verdict import Verdict
from vramlens.live.gone_leaks import FollowedSizes, gone_leak, without_certainty
from vramlens.live.growth.ration import Ration
from vramlens.live.holder.route import Route, size_of
from vramlens.live.leaks.leak_report import Gone, LeakReport, LiveLeak
from vramlens.live.unit_watch import UnitWatch
from vramlens.live.watch import LeakWatch


@pytest.mark.parametrize(("is_remade", "verdict"), [(False, "likely"), (True, "possible")])
def test_a_cache_that_grew_with_its_sequence_is_done_with_it(is_remade: bool, verdict: str) -> None:
    """Keys and values of one request, whose last look came late in it."""
    leak = LiveLeak(
        verdict=Verdict.PROVEN,
        kind="container",
        bytes_per_step=18_432,
        bytes=29 * 18_432,
        steps=10,
        is_remade=is_remade,
    )
    gone = Gone(bytes_per_step=18_432, step=1655, function="generate")
    told = gone_leak(leak, None, 1680, gone)
    assert told.verdict == verdict
    assert ("a sequence that grows until it is done" in told.reason) == is_remade


@pytest.mark.parametrize(("in_vain", "verdict"), [("", "possible"), ("nothing reads it", "likely")])
def test_what_an_ended_loop_left_for_nobody_is_likely(in_vain: str, verdict: str) -> None:
    leak = LiveLeak(
        verdict=Verdict.PROVEN,
        kind="container",
        bytes_per_step=1 << 20,
        bytes=20 << 20,
        steps=20,
        in_vain=in_vain,
    )
    (told,) = without_certainty(LeakReport(steps=60, leaks=(leak,))).leaks
    assert told.verdict == verdict
    assert (f"has ended, but {in_vain}" in told.reason) == bool(in_vain)


def test_what_is_twice_what_was_born_and_is_left_is_gone() -> None:
    """Whatever its owner still holds, and however large the model is that was there before: a column of
    a data frame that was converted.
    """
    watch = UnitWatch(None)
    route = Route("__main__", None, "history", ())
    leak = LiveLeak(
        verdict=Verdict.PROVEN,
        kind="graph",
        bytes_per_step=1 << 20,
        bytes=20 << 20,
        steps=20,
        route=route,
    )
    watch._followed[route] = sizes = FollowedSizes(20, 400)
    sizes.add(21, [0] * 420)
    sizes.end([0] * 420)
    before = LeakReport(steps=20, leaks=(leak,))
    for grown_bytes, lost in ((1 << 20, (leak,)), (11 << 20, ())):
        now = LeakReport(21, (), live_bytes=1 << 30, grown_bytes=grown_bytes)
        assert watch._lost_leaks(before, now) == lost
    watch.stop()


def test_timers_that_are_cancelled_are_no_entries() -> None:
    """An event loop drops them in bulk: nothing that a timer held goes then."""
    loop = asyncio.new_event_loop()
    timers = [loop.call_later(900, print) for _ in range(600)]
    sizes = FollowedSizes(1, size_of(timers[:340]))
    for timer in timers[:340:2]:
        timer.cancel()
    sizes.add(2, timers[:340])
    assert size_of(timers[:340]) == 170
    sizes = FollowedSizes(3, size_of(timers[:340]))
    sizes.add(4, [timer for timer in timers[:360] if not timer.cancelled()])
    assert not sizes.has_fallen
    assert size_of(timers) == 430
    loop.close()


def test_a_third_look_waits_until_it_is_a_small_part_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes all that is free: the loop is at its beginning at steps 24 and 48."""
    looks: list[int] = []
    clock = [0.0, 0.0]  # of the wall, and of the processor

    def look(watch: UnitWatch) -> None:
        looks.append(watch.steps)
        clock[1] += 0.05

    monkeypatch.setattr("vramlens.live.unit_watch.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("vramlens.live.unit_watch.thread_time", lambda: clock[1])
    monkeypatch.setattr(UnitWatch, "_keep", look)
    monkeypatch.setattr(UnitWatch, "may_have_grown", True)
    monkeypatch.setattr(LeakWatch, "may_have_grown", True)
    monkeypatch.setattr(Ration, "left", 1.0)
    watch = UnitWatch(None)
    for _ in range(400):
        clock[0] += 0.01
        watch.step(sys._getframe())
    watch.stop()
    assert looks == [6, 24, 192, 384]
