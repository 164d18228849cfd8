"""Watching a whole program for ``vramlens run --leaks``: steps by its optimizers, the report at
its end, on SIGUSR2, at out of memory; and, in a recording, who owns which block.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter, thread_time
from types import FrameType
from typing import Any

from vramlens.capture.process.own_thread import OwnEvent, allocate_lock
from vramlens.capture.recording.step_marks import NO_STEP
from vramlens.capture.warn import harmless, say
from vramlens.ground.own_line import terminal_width
from vramlens.ground.wrapped_lines import WIDTH
from vramlens.leak.leak import LeakOwner
from vramlens.live.gone_leaks import FollowedSizes, gone_leak
from vramlens.live.growth import last_frames
from vramlens.live.growth.ration import FIRST_STEPS, Ration
from vramlens.live.heap_look import OwnedStorage
from vramlens.live.holder.route import Route, size_of
from vramlens.live.leaks.leak_report import Gone, LeakReport, LiveLeak
from vramlens.live.leaks.leak_text import report_text
from vramlens.live.turns.loop_results import without_results
from vramlens.live.turns.other_steps import OtherSteps
from vramlens.live.watch import LeakWatch

OWNERS_SCHEMA = "vramlens.owners/1"
_FIRST_LOOK = 6  # steps: by then growth and warm-up can be told apart
_FREE_SECONDS, _SHARE = 0.15, 0.008
_LEAST_TOLD_SECONDS = 0.1
_USUAL_SHARE, _USUAL_SHARE_AT_FIRST = 0.02, 0.05  # of the run; of its first steps
_MOST_FOLLOWED = 8
"""Leaks whose size is read in each step; a report shows ten at most."""
_MOST_ROWS, _MOST_OWNERS = 200_000, 2_000
"""Of ``owners.json``, which is read whole: the largest come first."""
_LONGEST_CHAIN, _LONGEST_TEXT = 40, 200
"""Links of a chain and characters of a text there: twice what any report shows."""
_STEP_COMES_WITHIN_S, _TELLS_WITHIN_S = 2.0, 60.0
_CYCLES = {"cycle", "autograd_cycle"}
"""What a function leaves that has ended: its variables hold one another until the collector
comes.
"""


@dataclass(frozen=True, slots=True)
class _Looked:
    """One look.

    Attributes:
        report: what it found.
        storages: of what leaks own, where it is.
        time_us: when.
    """

    report: LeakReport
    storages: tuple[OwnedStorage, ...]
    time_us: int


class LeakFollower:
    """Follows a program's steps and tells what grew."""

    def __init__(self) -> None:
        self._watch: LeakWatch | None = None
        self._former: LeakWatch | None = None  # by another unit
        self._other_steps: OtherSteps | None = None
        self._latest: _Looked | None = None
        self._final: _Looked | None = None
        self._next = _FIRST_LOOK
        self._ration = Ration(_FREE_SECONDS, _SHARE)
        self._watch_seconds = 0.0
        self._began = self._latest_step = perf_counter()
        self._first_steps_ended = 0.0
        self._followed: dict[Route, FollowedSizes] = {}
        self._ends_a_step = allocate_lock()
        self._asked: list[OwnEvent] = []

    @harmless("counting calls of the model")
    def torch_is_there(self, torch: Any) -> None:
        """Until an optimizer steps, a call of the model is a step, or what else there is."""
        if hasattr(torch, "compiler"):  # else a child is unpickled in the midst of its import
            self._other_steps = OtherSteps(torch, self._unit_ended, self._begin_anew)

    @harmless("watching for leaks")
    def step_ended(self, _count: int) -> None:
        """After each step of the program, an optimizer's or by hand. The watch begins with the
        first.
        """
        if self._other_steps is not None:
            self._other_steps.stop()
            self._other_steps = None
            self._begin_anew()
        self._unit_ended(sys._getframe(1))

    def _begin_anew(self) -> None:
        """What was counted so far is of another unit."""
        self._former, self._watch = self._watch or self._former, None
        self._latest = None
        self._followed, self._next = {}, _FIRST_LOOK

    def _unit_ended(self, caller: FrameType) -> None:
        """Now and then the report is made: when the program ends, what its functions hold is
        gone already. Where two threads end a step at once, it is one.
        """
        if not self._ends_a_step.acquire(False):
            return
        try:
            self._end_step(caller)
            self._tell_whoever_asks()
        finally:
            self._ends_a_step.release()

    def _end_step(self, caller: FrameType) -> None:
        began = thread_time()
        if self._watch is None:
            self._began, self._first_steps_ended = perf_counter(), 0.0
            self._ration = Ration(_FREE_SECONDS, _SHARE)
            if self._former is not None:
                self._former.begin_anew()
            self._watch, self._former = self._former or LeakWatch(), None
        else:
            self._step(self._watch, caller)
        self._watch_seconds += thread_time() - began
        self._latest_step = perf_counter()

    def _step(self, watch: LeakWatch, caller: FrameType) -> None:
        """Ends a step of a watch, and looks if it is time to."""
        watch.step(caller)
        if watch.steps == FIRST_STEPS:
            self._ration.first_steps_ended()
            self._first_steps_ended = perf_counter()
        will_see_all = last_frames.keep_last(caller)
        for route, sizes in self._followed.items():
            sizes.add(watch.steps, route.find())
        if watch.steps < self._next:
            return
        self._next *= 2
        if self._ration.left > 0 and not will_see_all and watch.may_have_grown:
            began = thread_time()
            self._keep()
            self._ration.spent += thread_time() - began

    @harmless("looking for leaks")
    def program_ended(self) -> None:
        """Looks for the last time, while the variables are there that the program ended with."""
        if self._other_steps is not None:
            self._other_steps.stop()
        try:
            for route, sizes in self._followed.items():
                sizes.end(route.find())
            owned = (
                self._watch.owned() if self._watch is not None and last_frames.kept_frames else None
            )
            if owned is not None:
                self._final = _looked(*owned)
        finally:
            last_frames.let_go()

    def tell_after_step(self) -> None:
        """Has the thread that steps print the conclusion when its step ends; prints it here where
        no step ends soon. What is searched beside a thread that runs changes meanwhile.
        """
        told = OwnEvent()
        self._asked.append(told)
        told.wait(_STEP_COMES_WITHIN_S)
        try:
            self._asked.remove(told)
        except ValueError:  # the thread that steps is telling
            told.wait(_TELLS_WITHIN_S)
        else:
            self.tell()

    def _tell_whoever_asks(self) -> None:
        # No lock: a child that is forked while another thread has it would wait here for ever.
        while self._asked:
            try:
                told = self._asked.pop()
            except IndexError:  # whoever asked has waited long enough
                return
            self.tell()
            told.set()

    @harmless("looking for leaks")
    def tell(self) -> None:
        """Prints the conclusion on standard error."""
        report = self.conclusion()
        if report is None:
            say(f"--leaks: {NO_STEP}")
            return
        width = min(terminal_width(sys.stderr) or WIDTH, WIDTH)
        sys.stderr.write(f"{report_text(report, width)}\n")
        sys.stderr.flush()
        self._tell_cost()

    def _tell_cost(self) -> None:
        """Says what watching took of a run if that was more than the usual shares."""
        elapsed, spent = self._latest_step - self._began, self._watch_seconds
        if self._watch is not None:
            spent += self._watch.spent_seconds
        later = self._latest_step - self._first_steps_ended if self._first_steps_ended else 0.0
        usual = _USUAL_SHARE_AT_FIRST * (elapsed - later) + _USUAL_SHARE * later
        if spent < max(_LEAST_TOLD_SECONDS, usual):
            return
        of_steps = f" of {elapsed:.2f} s ({100 * spent / elapsed:.0f}%)" if spent < elapsed else ""
        say(f"watching for leaks took {spent:.2f} s{of_steps}; the share falls in longer runs")

    def conclusion(self) -> LeakReport | None:
        """The report of now, or of the last look where all is gone by now; None where no step
        has ended.
        """
        if self._watch is None:
            return None
        report = self._concluded(self._watch)
        if self._other_steps is None:
            return report
        if not self._other_steps.are_calls:
            report = without_results(report)
        note = f"no optimizer has stepped: a step is {self._other_steps.unit}"
        return replace(report, notes=(note, *report.notes))

    def _concluded(self, watch: LeakWatch) -> LeakReport:
        """The report of the end, with what an earlier look found and is gone by now."""
        if self._final is not None and self._final.report.steps == watch.steps:
            report = self._final.report
            before = self._earlier(report)
        else:
            report = watch.report()
            if report.gone is not None:  # the program itself makes no report
                report = replace(report, gone=replace(report.gone, function=""))
            before = self._earlier(report)
            if before is not None:
                say(
                    f"--leaks: after step {before.report.steps:,} of {report.steps:,}; what its"
                    " functions held is gone by now"
                )
        lost = () if before is None else self._lost_leaks(before.report, report)
        gone = tuple(self._as_gone(leak, report.gone) for leak in lost)
        return replace(report, leaks=(*gone, *report.leaks))

    def _keep(self) -> None:
        """Keeps the latest look that found something, else this one; what it found is followed
        from now on.
        """
        owned = None if self._watch is None else self._watch.owned(is_brief=True)
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

    def _earlier(self, now: LeakReport) -> _Looked | None:
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
        """The leaks of an earlier look that are not there any more; what is there was judged again."""
        names = {leak.owner.name for leak in now.leaks if leak.owner is not None}
        there = {route for route, sizes in self._followed.items() if sizes.is_there}
        return tuple(
            leak
            for leak in before.found
            if leak.route not in there and (leak.owner is None or leak.owner.name not in names)
        )

    def _doubted_report(self, before: _Looked, now: LeakReport) -> LeakReport:
        return replace(
            before.report,
            steps=now.steps,
            leaks=tuple(self._as_gone(leak, now.gone) for leak in before.report.leaks),
        )

    def _as_gone(self, leak: LiveLeak, gone: Gone | None) -> LiveLeak:
        steps = 0 if self._watch is None else self._watch.steps
        sizes = None if leak.route is None else self._followed.get(leak.route)
        return gone_leak(leak, sizes, steps, gone)

    @harmless("finding who owns what")
    def owners(self, kind: str) -> dict[str, Any] | None:
        """``owners.json``: who owns each live storage, by address.

        Args:
            kind: of devices that are recorded: cuda, xpu.
        """
        final = self._final
        if (
            final is not None
            and self._watch is not None
            and final.report.steps == self._watch.steps
        ):
            return owners_of(final.report, final.storages, final.time_us, kind)
        owned = None if self._watch is None else self._watch.owned()
        if owned is None:
            return None
        report, storages = owned
        before = self._earlier(report)
        if before is not None:
            return owners_of(
                self._doubted_report(before, report), before.storages, before.time_us, kind
            )
        return owners_of(report, storages, time.time_ns() // 1000, kind)


def _looked(report: LeakReport, storages: Sequence[OwnedStorage]) -> _Looked:
    """A look, with the storages that leaks own."""
    owned_rows = tuple(row for row in storages if row[1] >= 0)[:_MOST_ROWS]
    return _Looked(report, owned_rows, time.time_ns() // 1000)


def owners_of(
    report: LeakReport, rows: Sequence[OwnedStorage], time_us: int, kind: str
) -> dict[str, Any]:
    """Who owns storages on devices of a kind, and the leaks, at a time."""
    table: list[Sequence[int]] = []
    for storage, owner, born in rows:
        device, _, index = storage.device.partition(":")
        if device == kind:
            table.append(
                (
                    int(index or 0),
                    storage.address,
                    storage.size_bytes,
                    owner,
                    -1 if born is None else born,
                )
            )
    table.sort(key=lambda row: -row[2])
    return {
        "schema": OWNERS_SCHEMA,
        "time_us": time_us,
        "step": report.steps,
        "watched_from_step": 1,
        "complete": report.complete and len(table) <= _MOST_ROWS,
        "skipped": list(report.notes),
        "owners": [_row(leak) for leak in report.leaks[:_MOST_OWNERS]],
        "storages": {
            "columns": ["device", "address", "bytes", "owner", "born_step"],
            "rows": table[:_MOST_ROWS],
        },
        "leaks": [leak.to_dict() for leak in report.leaks],
    }


def _row(leak: LiveLeak) -> dict[str, Any]:
    """A leak's owner, and what it keeps, as a row of ``owners.json``."""
    owner = leak.owner or LeakOwner(name="", kind="")
    return {
        "name": owner.name[:_LONGEST_TEXT] or None,
        "kind": owner.kind[:_LONGEST_TEXT] or None,
        "file": owner.file or None,
        "line": owner.line,
        "function": owner.function or None,
        "chain": [text[:_LONGEST_TEXT] for text in owner.chain[:_LONGEST_CHAIN]],
        "source": owner.source[:_LONGEST_TEXT],
        "class": leak.kind,
        "verdict": leak.verdict,
        "bytes_per_step": leak.bytes_per_step,
        "bytes": leak.bytes,
        "steps": leak.steps,
        "fix": leak.fix or None,
        "fix_share": round(leak.fix_share, 4),
        "freed": leak.is_freed,
    }
