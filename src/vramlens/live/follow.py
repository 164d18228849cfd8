"""Watching a whole program for ``vramlens run --leaks``: steps by its optimizers, the report at
its end, on SIGUSR2, at out of memory; and, in a recording, who owns which block.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from time import thread_time
from types import FrameType
from typing import Any

from vramlens.capture.process.own_thread import OwnEvent, allocate_lock
from vramlens.capture.recording.step_marks import say_no_step
from vramlens.capture.warn import harmless, say_sentences
from vramlens.ground.wrapped_lines import answer_width
from vramlens.leak.leak import LeakOwner
from vramlens.live.growth import last_frames
from vramlens.live.growth.ration import FIRST_STEPS
from vramlens.live.heap_look import OwnedStorage
from vramlens.live.leaks.leak_report import LeakReport, LiveLeak
from vramlens.live.leaks.leak_text import report_text
from vramlens.live.turns.other_steps import OtherSteps
from vramlens.live.turns.training_pause import TrainingPause
from vramlens.live.unit_watch import MOST_ROWS, UnitWatch
from vramlens.live.watching_cost import WatchingCost

OWNERS_SCHEMA = "vramlens.owners/1"
_MOST_OWNERS = 2_000
"""Of ``owners.json``, which is read whole: the largest come first."""
_LONGEST_CHAIN, _LONGEST_TEXT = 40, 200
"""Links of a chain and characters of a text there: twice what any report shows."""
_MOST_LOOPS_OVER = 2
"""Whose watches are kept: a preparation and the loop of the program's work, before an epilogue. Each costs
a search when the program ends.
"""
_STEP_COMES_WITHIN_S, _TELLS_WITHIN_S = 2.0, 60.0


class LeakFollower:
    """Follows a program's steps and tells what grew."""

    def __init__(self) -> None:
        self._watch: UnitWatch | None = None
        self._former: UnitWatch | None = None  # by another unit
        self._over: list[UnitWatch] = []  # whose place was taken, the latest first
        self._training: UnitWatch | None = None  # while no optimizer steps any more
        self._pause: TrainingPause | None = None
        self._torch: Any = None
        self._other_steps: OtherSteps | None = None
        self._cost = WatchingCost()
        self._ends_a_step = allocate_lock()
        self._begins_anew = False
        self._asked: list[OwnEvent] = []
        self._has_ended = False

    @harmless("counting calls of the model")
    def torch_is_there(self, torch: Any) -> None:
        """Until an optimizer steps, a call of the model is a step, or what else there is."""
        if hasattr(torch, "compiler"):  # else a child is unpickled in the midst of its import
            self._torch = torch
            self._other_steps = OtherSteps(torch, self._unit_ended, self._begin_anew)

    @harmless("watching for leaks")
    def step_ended(self, _count: int) -> None:
        """After each step of the program, an optimizer's or by hand. The watch begins with the
        first.
        """
        if self._pause is None:
            self._pause = TrainingPause(self._training_paused)
        self._pause.stepped()
        if self._other_steps is not None:
            self._other_steps.stop()
            self._other_steps = None
            if self._training is None:
                self._begin_anew()
            else:
                self._training_goes_on(self._training)
        self._unit_ended(sys._getframe(1))
        self._pause.goes_on()

    @harmless("watching what follows the training")
    def _training_paused(self) -> bool:
        """What follows is watched by other steps; what the training's have shown stays. False
        where a step is just ending: a look at its end may take longer than a pause.
        """
        if self._torch is None:
            return True
        if not self._ends_a_step.acquire(False):
            return False
        try:
            self._training, self._watch = self._watch, None
            self._other_steps = OtherSteps(
                self._torch, self._unit_ended, self._begin_anew, follows_training=True
            )
            return True
        finally:
            self._ends_a_step.release()

    def _training_goes_on(self, training: UnitWatch) -> None:
        self._begins_anew = False
        for watch in self._watches:
            if watch is not training:
                self._discard(watch)
        self._watch, self._training, self._former = training, None, None
        self._over.clear()

    def _begin_anew(self) -> None:
        """The next step is of another unit. A thread may be ending one of this unit meanwhile."""
        self._begins_anew = True

    def _end_unit(self) -> None:
        """What was counted so far is of another unit: it stays until this one has counted
        enough.
        """
        self._begins_anew = False
        if self._watch is None:
            return
        if self._former is None:
            self._former = self._watch
        else:
            self._discard(self._watch)
        self._watch = None

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
        if self._begins_anew:
            self._end_unit()
        if self._watch is None:
            self._cost.unit_begins()
            unit = None if self._other_steps is None else self._other_steps.unit
            self._watch = UnitWatch(unit, self._former or self._training)
        else:
            self._watch.step(caller)
            if self._watch.steps == FIRST_STEPS:
                self._cost.first_steps_ended()
        if self._former is not None and self._watch.takes_place_of(self._former):
            self._put_aside(self._former)
            self._former = None
        self._cost.step_ended(thread_time() - began)

    def _discard(self, watch: UnitWatch) -> None:
        """Ends a watch; what it took is of the run's cost."""
        watch.stop()
        self._cost.add(watch.spent_seconds)

    def _put_aside(self, former: UnitWatch) -> None:
        """Keeps the watch by a loop in which something may have grown, after another loop took its
        place; what else a unit counted is no longer wanted.
        """
        if self._watch is None or not self._watch.follows_loop or not former.may_have_grown:
            self._discard(former)
            return
        former.is_over = True
        self._over.insert(0, former)
        for oldest in self._over[_MOST_LOOPS_OVER:]:
            self._discard(oldest)
        del self._over[_MOST_LOOPS_OVER:]

    @property
    def _watches(self) -> list[UnitWatch]:
        """Those that may say something: the training's, this one and the former, and after them what
        loops counted that are over.
        """
        watches = (self._training, self._watch, self._former, *self._over)
        return [watch for watch in watches if watch is not None]

    @harmless("looking for leaks")
    def program_ended(self) -> None:
        """Looks for the last time, while the variables are there that the program ended with."""
        self.stop()
        self._has_ended = True
        is_rest_judged = False
        if self._training is not None and self._watch is not None:
            is_rest_judged = self._watch.can_tell
            self._end_short_epilogue(self._training, self._watch)
        latest = self._watch or self._training
        if latest is not None and not is_rest_judged and _has_reached_its_end():
            latest.program_ends()
        try:
            for watch in self._watches:
                watch.end()
        finally:
            last_frames.let_go()

    def stop(self) -> None:
        """Counts no more steps."""
        if self._pause is not None:
            self._pause.stop()
        if self._other_steps is not None:
            self._other_steps.stop()

    def _end_short_epilogue(self, training: UnitWatch, watch: UnitWatch) -> None:
        """Discards what came after the training where it cannot say anything, or nothing grew: each
        watch costs a search.
        """
        if not watch.can_tell or not watch.may_have_grown:
            self._training_goes_on(training)

    def tell_after_step(self) -> None:
        """Has the thread that steps print the conclusion when its step ends; prints it here where
        no step ends soon. What is searched beside a thread that runs changes meanwhile.
        """
        answered = OwnEvent()
        self._asked.append(answered)
        answered.wait(_STEP_COMES_WITHIN_S)
        try:
            self._asked.remove(answered)
        except ValueError:  # the thread that steps is telling
            answered.wait(_TELLS_WITHIN_S)
        else:
            self.tell()

    def _tell_whoever_asks(self) -> None:
        # No lock: a child that is forked while another thread has it would wait here for ever.
        while self._asked:
            try:
                answered = self._asked.pop()
            except IndexError:  # whoever asked has waited long enough
                return
            self.tell()
            answered.set()

    @harmless("looking for leaks")
    def tell(self) -> None:
        """Prints the conclusion on standard error."""
        report = self.conclusion()
        if report is None:
            say_no_step()
            return
        report = replace(report, has_ended=self._has_ended)
        sys.stderr.write(f"{report_text(report, answer_width(sys.stderr))}\n")
        sys.stderr.flush()
        self._tell_cost()

    def _tell_cost(self) -> None:
        """Says what watching took of a run if that was more than the usual shares."""
        sentence = self._cost.text(sum(watch.spent_seconds for watch in self._watches))
        if sentence:
            say_sentences(sentence)

    def conclusion(self) -> LeakReport | None:
        """The report of now, or of the last look where all is gone by now; None where no step
        has ended.
        """
        conclusion = self._telling_watch()
        if conclusion is None:
            return None
        _, report, looked_after = conclusion
        if looked_after:
            say_sentences(
                f"--leaks: after step {looked_after:,} of {report.steps:,}; what its"
                " functions held is gone by now"
            )
        return report

    def _telling_watch(self) -> tuple[UnitWatch, LeakReport, int] | None:
        """The watch that says most, with what it says: the latest that found a leak, else the latest
        that found a possible one, else the one that counted most; None without any.
        """
        conclusions = []
        for watch in [watch for watch in self._watches if watch.can_tell] or self._watches[:1]:
            conclusions.append((watch, *watch.conclusion()))
            if conclusions[-1][1].found:
                return conclusions[-1]
        possible = [row for row in conclusions if row[1].possible]
        if possible:
            return possible[0]
        sure_of_none = [row for row in conclusions if not row[0].is_over or row[1].is_accounted_for]
        return max(sure_of_none, key=lambda row: row[1].steps, default=None)

    @harmless("finding who owns what")
    def owners(self, kind: str) -> dict[str, Any] | None:
        """``owners.json``: who owns each live storage, by address.

        Args:
            kind: of devices that are recorded: cuda, xpu.
        """
        is_one = len(self._watches) < 2
        conclusion = None if is_one else self._telling_watch()
        watch = self._watch if conclusion is None else conclusion[0]
        looked = None if watch is None else watch.owned()
        if looked is None:
            return None
        return owners_of(looked.report, looked.storages, looked.time_us, kind)


def _has_reached_its_end() -> bool:
    """Whether the program ends by itself; else the memory of a step that was broken off is there."""
    error = sys.exc_info()[0]
    return error is None or issubclass(error, SystemExit)


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
        "complete": report.complete and len(table) <= MOST_ROWS,
        "skipped": list(report.notes),
        "owners": [_row(leak) for leak in report.leaks[:_MOST_OWNERS]],
        "storages": {
            "columns": ["device", "address", "bytes", "owner", "born_step"],
            "rows": table[:MOST_ROWS],
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
