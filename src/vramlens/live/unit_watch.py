"""The watch by one unit of steps: what it counted, the looks on its way, and what they say at the
end.

A program's unit may change: a loop ends and another begins. What a long loop has counted stays
until another unit has counted enough to say as much: an epilogue's few turns do not. What grew in a
loop that is over, and is still there, is told as possible.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import thread_time
from types import FrameType

from vramlens.live.gone_leaks import (
    FollowedSizes,
    gone_leak,
    possible_owners,
    without_certainty,
)
from vramlens.live.growth import last_frames
from vramlens.live.growth.pace import FEWEST, WARM_UP
from vramlens.live.growth.ration import FIRST_STEPS, Ration
from vramlens.live.heap_look import OwnedStorage
from vramlens.live.holder.route import Route, size_of
from vramlens.live.leaks.leak_report import LeakReport, LiveLeak
from vramlens.live.turns.loop_results import without_training_results
from vramlens.live.turns.other_steps import StepUnit
from vramlens.live.turns.unit_rules import judged_without_optimizer
from vramlens.live.watch import LeakWatch

_FIRST_LOOK = 6  # steps: by then growth and warm-up can be told apart
_QUICK_SECONDS, _SECOND_OF_QUICK = 0.5, 24
"""A loop whose first steps take less is quick: two looks take what is free there, so the second waits
for the step at which there is more to see, as does a third in any loop.
"""
_TIMES_AS_LONG = 20
"""As the latest look took, that a loop has gone on before a third one: it is all that is free then, and
after it none is for 12 seconds for each tenth that a look takes. With half as long, it would come
while a server's first sessions are under way; with five times, most runs would end without it.
"""
_FREE_SECONDS, _SHARE = 0.2, 0.008
_MOST_FOLLOWED = 8
"""Leaks whose size is read in each step; a report shows ten at most."""
MOST_ROWS = 200_000
"""Of a look's storages in ``owners.json``, which is read whole: the largest come first."""
_CYCLES = {"cycle", "autograd_cycle"}
"""What a function leaves that has ended: its variables hold one another until the collector
comes.
"""
_FEWEST_STEPS = WARM_UP + FEWEST + 1
"""With fewer nothing can be said."""
_SHARE_OF_FORMER = 0.25
"""Of the former loop's turns, that a loop needs to take its place. With half, the requests that follow a
longer preparation would not count; with an eighth, an evaluation of 40 batches would end a loop of 300.
"""
_ENOUGH_TURNS = 32
"""In the place of however many: a preparation has thousands of turns."""


@dataclass(frozen=True, slots=True)
class Looked:
    """One look.

    Attributes:
        report: what it found.
        storages: of what leaks own, where it is.
        time_us: when.
    """

    report: LeakReport
    storages: tuple[OwnedStorage, ...]
    time_us: int


class UnitWatch:
    """Counts the steps of one unit, and tells what grew in them.

    Attributes:
        is_over: whether another loop has followed and counted enough.
    """

    def __init__(self, unit: StepUnit | None, former: UnitWatch | None = None) -> None:
        """Begins.

        Args:
            unit: what a step is; None where it is an optimizer's, or by hand.
            former: the watch by another unit: what it has seen is not looked for again.
        """
        self.is_over = False
        self._unit = unit
        former_watch: LeakWatch | None = None if former is None else former._watch
        self._watch: LeakWatch = LeakWatch(former_watch)
        self._latest: Looked | None = None
        self._final: Looked | None = None
        self._next, self._began = _FIRST_LOOK, time.monotonic()
        self._ration = Ration(_FREE_SECONDS, _SHARE)
        self._followed: dict[Route, FollowedSizes] = {}
        self._looks, self._look_seconds = 0, 0.0  # of the latest

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return self._watch.steps

    @property
    def spent_seconds(self) -> float:
        """What watching took beside the calls of ``step()``."""
        return self._watch.spent_seconds

    @property
    def may_have_grown(self) -> bool:
        """Whether a look could find growth; asking costs less than a millisecond."""
        return self._watch.may_have_grown

    @property
    def follows_loop(self) -> bool:
        """Whether any loop before its unit is over."""
        return self._unit is not None and self._unit.follows_loop

    @property
    def can_tell(self) -> bool:
        """Whether there were enough steps to say anything."""
        return self.steps >= _FEWEST_STEPS

    def takes_place_of(self, former: UnitWatch) -> bool:
        """Whether what a former unit counted is no longer wanted."""
        if self._unit is None or not former.can_tell:
            return True
        fewest = _FIRST_LOOK
        if self.follows_loop:
            fewest = max(fewest, round(min(_SHARE_OF_FORMER * former.steps, _ENOUGH_TURNS)))
        return self.steps >= fewest

    def step(self, caller: FrameType) -> None:
        """Ends a step, and looks if it is time to."""
        self._watch.step(caller)
        if self.steps == FIRST_STEPS:
            self._ration.first_steps_ended()
        will_see_all = last_frames.keep_last(caller)
        for route, sizes in self._followed.items():
            sizes.add(self.steps, route.find())
        if self.steps < self._next:
            return
        self._next *= 2
        if will_see_all or self._is_too_early:
            return
        if self._ration.left > 0 and self._watch.may_have_grown:
            began = thread_time()
            self._keep()
            self._looks, self._look_seconds = self._looks + 1, thread_time() - began
            self._ration.spent += self._look_seconds

    @property
    def _is_too_early(self) -> bool:
        """Whether a loop is so quick that a later look will say more."""
        seconds = time.monotonic() - self._began
        if self._looks >= 2:
            return seconds < _TIMES_AS_LONG * self._look_seconds
        return seconds < _QUICK_SECONDS and _FIRST_LOOK < self.steps < _SECOND_OF_QUICK

    def stop(self) -> None:
        """Ends what goes on between steps."""
        self._watch.stop()

    def program_ends(self) -> None:
        """No step of it is in the making any more, and no other watch sees what came after it. A call
        or a turn ends with the next one: what the last of them uses came after no step.
        """
        if self._unit is None:
            self._watch.program_ends()

    def end(self) -> None:
        """Looks for the last time, while the variables are there that the program ended with."""
        for route, sizes in self._followed.items():
            sizes.end(route.find())
        owned = self._watch.owned() if last_frames.kept_frames else None
        if owned is not None:
            self._final = _looked(*owned)

    def conclusion(self) -> tuple[LeakReport, int]:
        """The report of now, or of the end, with what an earlier look found and is gone by now;
        and after which step that look was, where it says more than what is there, else 0.
        """
        final = self._look_at_the_end()
        report = self._watch.report() if final is None else final.report
        if final is None and report.gone is not None:  # the program itself makes no report
            report = replace(report, gone=replace(report.gone, function=""))
        report = self._with_owners_of_gone(report)
        before = self._earlier(report)
        gone = () if before is None else self._gone_leaks(before, report)
        full_report = self._in_its_unit(replace(report, leaks=(*gone, *report.leaks)))
        return full_report, 0 if before is None or final is not None else before.report.steps

    def _with_owners_of_gone(self, report: LeakReport) -> LeakReport:
        """The report, with the possible leaks of an earlier look in the place of what is gone."""
        if report.gone is None or self._latest is None:
            return report
        owners = possible_owners(self._latest.report, report.gone)
        return replace(report, gone=None, leaks=(*report.leaks, *owners)) if owners else report

    def owned(self) -> Looked | None:
        """Who owns which storage: now, at the end, or at the look before where all is gone by
        now; None where nothing can be watched.
        """
        looked = self._owned_now()
        return None if looked is None else replace(looked, report=self._judged(looked.report))

    def _owned_now(self) -> Looked | None:
        final = self._look_at_the_end()
        if final is not None:
            return final
        owned = self._watch.owned()
        if owned is None:
            return None
        report, storages = owned
        before = self._earlier(report)
        if before is not None:
            return replace(before, report=self._doubted_report(before, report))
        return Looked(report, tuple(storages), time.time_ns() // 1000)

    def _look_at_the_end(self) -> Looked | None:
        is_latest = self._final is not None and self._final.report.steps == self.steps
        return self._final if is_latest else None

    def _in_its_unit(self, report: LeakReport) -> LeakReport:
        """The report, with what a step is where it is no optimizer's."""
        report = self._judged(report)
        if self._unit is None:
            return report
        return replace(report, notes=(self._unit.note, *report.notes))

    def _judged(self, report: LeakReport) -> LeakReport:
        """The report, with what is left of its leaks by the rules of the unit."""
        if self._unit is None:
            report = without_training_results(report)
        else:
            report = judged_without_optimizer(report, is_of_time=self._unit.is_of_time)
        return without_certainty(report) if self.is_over else report

    def _keep(self) -> None:
        """Keeps the latest look that found something, else this one; what it found is followed
        from now on.
        """
        owned = self._watch.owned(is_brief=True)
        if owned is None:
            return
        report, storages = owned
        if report.found or self._latest is None or not self._latest.report.found:
            self._latest = _looked(report, storages)
            routes = [leak.route for leak in report.found if leak.route is not None]
            self._followed = {
                route: FollowedSizes(report.steps, size_of(route.find()))
                for route in routes[:_MOST_FOLLOWED]
            }

    def _earlier(self, now: LeakReport) -> Looked | None:
        """The look that says more than what is there now, when functions have ended and taken
        their variables along.
        """
        before = self._latest
        lost = () if before is None else self._lost_leaks(before.report, now)
        if not lost:
            return None
        earlier_kinds = {leak.kind for leak in lost}
        kinds_now = {leak.kind for leak in now.found}
        is_all = not kinds_now or (kinds_now <= _CYCLES and not earlier_kinds & _CYCLES)
        return before if is_all else None

    def _lost_leaks(self, before: LeakReport, now: LeakReport) -> tuple[LiveLeak, ...]:
        """The leaks of an earlier look that are not there any more; what is there was judged again. What
        was twice all that was born since and is left is gone, whatever its owner still holds.
        """
        names = {leak.owner.name for leak in now.leaks if leak.owner is not None}
        routes_there = {route for route, sizes in self._followed.items() if sizes.is_there}
        most_bytes = 2 * now.grown_bytes if now.complete else math.inf
        return tuple(
            leak
            for leak in before.found
            if (leak.route not in routes_there or leak.bytes > most_bytes)
            and (leak.owner is None or leak.owner.name not in names)
        )

    def _gone_leaks(self, before: Looked, now: LeakReport) -> tuple[LiveLeak, ...]:
        """The leaks of an earlier look that are gone, as what is left of them. Of a loop that is over
        only what grew until its end: of the rest nobody asks.
        """
        lost = self._lost_leaks(before.report, now)
        gone = (self._as_gone(leak, now) for leak in lost)
        return tuple(leak for leak in gone if leak.sure or not self.is_over)

    def _doubted_report(self, before: Looked, now: LeakReport) -> LeakReport:
        return replace(
            before.report,
            steps=now.steps,
            leaks=tuple(self._as_gone(leak, now) for leak in before.report.leaks),
        )

    def _as_gone(self, leak: LiveLeak, now: LeakReport) -> LiveLeak:
        sizes = None if leak.route is None else self._followed.get(leak.route)
        return gone_leak(leak, sizes, self.steps, now.gone or now.gone_early)


def _looked(report: LeakReport, storages: Sequence[OwnedStorage]) -> Looked:
    """A look, with the storages that leaks own."""
    owned_rows = tuple(row for row in storages if row[1] >= 0)[:MOST_ROWS]
    return Looked(report, owned_rows, time.time_ns() // 1000)
