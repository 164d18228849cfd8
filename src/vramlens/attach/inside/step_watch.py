"""Some steps of the program watched for leaks and recorded; afterwards nothing of it is left.

A step is an optimizer's turn. Until one comes, it is the calls of the outermost module in a quarter
of a second: a request that generates text calls it for each token, and keeps what it keeps once.
As long as neither has come, each quarter of a second counts as one. The search is of the moment at
which the last step ends, on the thread that steps, where the variables of its functions say what
the steps have kept.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

from vramlens.attach.inside.forked_copy import AskingThread, ForkedCopy, KnownFacts, NoCopy
from vramlens.attach.inside.pauses import Pauses
from vramlens.attach.inside.program_end import ProgramEnd
from vramlens.attach.inside.state_now import NAMES_SHARE, search_time, torch_is_whole
from vramlens.attach.messages import Connection
from vramlens.capture.process.own_thread import OwnEvent, allocate_lock
from vramlens.capture.process.tracked_objects import tracked_objects
from vramlens.capture.recording.output_path import RecordingPaths
from vramlens.capture.recording.recorder import Recorder, WriteRequest
from vramlens.capture.torch_api import DeviceState, loaded_torch
from vramlens.capture.warn import harmless
from vramlens.live.follow import owners_of
from vramlens.live.growth import last_frames
from vramlens.live.heap.search_time import LONG, SearchTime
from vramlens.live.turns.module_calls import ModuleCalls, has_compiled
from vramlens.live.turns.unit_rules import judged_without_optimizer
from vramlens.live.watch import LeakWatch
from vramlens.units import counted

_LOOKS_EVERY_S = 0.25
_NO_STEP = "no step ended while it was watched: neither an optimizer's nor a model's call"
_REPORT_WITHIN_S = 60.0
_STEP_COMES_WITHIN_S = 20.0  # large models' take some seconds; or half of the time of the watch
_CALLS_FOR_S = 0.25
_BY_CLOCK = (
    "no optimizer stepped and no model was called: each quarter of a second counts as a step"
)


class _Unit(Enum):
    """What counts as a step."""

    TIME = "time"
    CALLS = "calls"
    OPTIMIZER = "optimizer"


class StepWatch:
    """A watch of the next steps.

    Attributes:
        is_over: happens when the steps have ended and the search for what they left goes on.
    """

    def __init__(self, request: dict[str, Any], pauses: Pauses, recorder: Recorder) -> None:
        """Prepares.

        Args:
            request: ``steps``: how many are watched, 0 for as many as come in ``seconds``;
                ``pause_s``: the longest that the program may stand still.
            recorder: of the GPUs, while it is on.
        """
        self._wanted, self._pause_s = int(request["steps"]), float(request["pause_s"])
        self._pauses, self._recorder = pauses, recorder
        seconds = float(request["seconds"])
        self._ends_at = time.monotonic() + seconds
        self._step_comes_by = time.monotonic() + min(_STEP_COMES_WITHIN_S, seconds / 2)
        self._watch: LeakWatch | None = None
        self._calls: ModuleCalls | None = None
        self._call_count = 0
        self._next_unit = 0.0
        self._unit = _Unit.TIME
        self._has_models = True
        self._is_finishing = False
        self._has_program_ended = False
        self._finish_lock = allocate_lock()
        self._pid = os.getpid()
        self._copy: ForkedCopy | None = None
        self._findings: dict[str, Any] | None = None
        self._stepping: AskingThread | None = None
        self.is_over = OwnEvent()

    @property
    def steps(self) -> int:
        """Steps that have ended so far."""
        return 0 if self._watch is None else self._watch.steps

    def begin(self, torch: Any) -> None:
        """Until an optimizer steps, calls of the model are steps; not where something is compiled."""
        with self._pauses.counted():
            self._has_models = _has_models(torch)
        if hasattr(torch, "compiler") and not has_compiled():
            self._calls = ModuleCalls(torch, self._called)

    def tick(self) -> None:
        """Ends a step where time is counted."""
        if self._unit is _Unit.TIME:
            is_late = time.monotonic() >= self._step_comes_by
            self._unit_ended(may_be_last=is_late or not self._has_models)

    def optimizer_stepped(self, _count: int) -> None:
        """After each step of an optimizer."""
        self._pauses.step_ended("step")
        if self._is_finishing or self._is_in_child():
            return
        if self._calls is not None:
            self._calls.stop()
            self._calls = None
        self._count_by(_Unit.OPTIMIZER)
        self._unit_ended()

    def _called(self) -> None:
        """At the beginning of each call of the outermost module: the calls before it have ended."""
        self._pauses.step_ended("call")
        if self._is_in_child():
            return
        self._count_by(_Unit.CALLS)
        now = time.monotonic()
        self._call_count += self._watch is not None
        if now >= self._next_unit:
            self._next_unit = now + _CALLS_FOR_S
            self._unit_ended()

    def _is_in_child(self) -> bool:
        """True in a process that the program has forked meanwhile; the watch ends there."""
        if self._pid == os.getpid():
            return False
        self._is_finishing = True
        last_frames.let_go()
        if self._calls is not None:
            self._calls.stop()
        if self._watch is not None:
            self._watch.stop()
        return True

    def _count_by(self, unit: _Unit) -> None:
        """From now on this counts as a step; what another unit has counted is of no use."""
        if self._unit is unit or self._is_finishing:
            return
        self._unit = unit
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    def program_ends(self) -> None:
        """Begins the search where the steps that were asked for have not all come; before the first
        one there is nothing to wait for.
        """
        if self._is_finishing:
            return
        self._has_program_ended = True
        if self._watch is not None:
            self._finish(self._watch)
        else:
            self._is_finishing = True
            self.is_over.set()

    def conclude(self) -> dict[str, Any] | None:
        """What the steps have left: ``leaks``, ``leaks_text``, ``recording``; None without a
        step.
        """
        if self._watch is not None:
            self._finish(self._watch)
        if self._is_finishing:
            self.is_over.wait(_REPORT_WITHIN_S)
        if self._copy is not None and self._watch is not None:
            self._findings = self._answer_of_copies(self._copy, self._watch)
        if self._findings is None and self._watch is not None:
            self._findings = self._searched_here(self._watch)
        return self._findings

    def _answer_of_copies(self, copy: ForkedCopy, watch: LeakWatch) -> dict[str, Any] | None:
        """The findings of the copy that was made at the last step's end; where it hung or died,
        of another.
        """
        findings: dict[str, Any] | None = None
        try:
            findings = copy.answer(_REPORT_WITHIN_S)
        except NoCopy:
            with suppress(NoCopy):
                self._copy = self._copy_that_searches(watch)
                findings = self._copy.answer(_REPORT_WITHIN_S)
        return findings

    def leave(self) -> None:
        """Takes away what goes on between steps."""
        self._is_finishing = True
        last_frames.let_go()
        if self._calls is not None:
            self._calls.stop()
        if self._copy is not None:
            self._copy.end()
        if self._watch is not None:
            self._watch.stop()

    @harmless("watching for leaks")
    def _unit_ended(self, *, may_be_last: bool = True) -> None:
        if self._is_finishing:
            return
        watch = self._watch  # another thread may begin another unit meanwhile
        if watch is None:
            with self._pauses.counted():
                self._watch = LeakWatch()
            return
        caller = sys._getframe(1)
        watch.step(caller)
        last_frames.keep_last(caller)
        if self._unit is not _Unit.TIME:
            self._stepping = AskingThread()
        is_late = time.monotonic() >= self._ends_at
        is_enough = bool(self._wanted) and watch.steps >= self._wanted
        if is_late or (is_enough and may_be_last):
            self._finish(watch)

    def _finish(self, watch: LeakWatch) -> None:
        """The end of the watch: the search begins, in a copy of this moment. For the first thread
        that comes here.
        """
        with self._finish_lock:
            if self._is_finishing:
                return
            self._is_finishing = True
        try:
            with self._pauses.counted():
                self._copy = self._copy_that_searches(watch)
        except NoCopy:
            self._findings = self._searched_here(watch)
        finally:
            self.is_over.set()

    def _copy_that_searches(self, watch: LeakWatch) -> ForkedCopy:
        """A copy of this moment that has begun to search.

        Raises:
            NoCopy: there can be none.
        """
        gpu = self._recorder.gpu
        state = gpu.device_state() if gpu is not None and gpu.is_initialized() else None
        if isinstance(self._recorder.facts, KnownFacts):
            self._recorder.facts.ask()
        return ForkedCopy(partial(self._searched_in_copy, watch, state), self._stepping)

    def _searched_in_copy(
        self, watch: LeakWatch, state: DeviceState | None
    ) -> dict[str, Any] | None:
        if self._recorder.gpu is not None and state is not None:
            self._recorder.gpu.become_copy(state)
        self._recorder.become_copy()
        return self._searched(watch, LONG)

    def _searched_here(self, watch: LeakWatch) -> dict[str, Any] | None:
        """The search in the program itself, which stands still for it."""
        self._recorder.naming_seconds = NAMES_SHARE * self._pause_s
        with self._pauses.counted():
            return self._searched(watch, search_time(self._pause_s))

    def _searched(self, watch: LeakWatch, allowed: SearchTime) -> dict[str, Any] | None:
        """What the steps have left, and who keeps it; the recording with its owners."""
        owned = watch.owned(allowed)
        if owned is None:
            return None
        report, storages = owned
        if self._unit is not _Unit.OPTIMIZER:
            report = judged_without_optimizer(report, is_of_time=self._unit is _Unit.TIME)
        report = replace(report, notes=(*self._end_note(), *self._unit_note(), *report.notes))
        now_us = time.time_ns() // 1000
        self._recorder.owners = lambda kind: owners_of(report, storages, now_us, kind)
        path = None
        if self._recorder.recording:
            path = self._recorder.write(WriteRequest("api", quiet=True)).get("path")
        return {"leaks": report.to_dict(), "leaks_text": str(report), "recording": path}

    def _end_note(self) -> tuple[str, ...]:
        """That the program ended early, and what can no longer be seen then."""
        if not self._has_program_ended:
            return ()
        ended = f"the program ended after {counted(self.steps, 'step')}"
        if last_frames.kept_frames:
            return (ended,)
        return (f"{ended}: what variables of its functions kept until then is no longer there",)

    def _unit_note(self) -> tuple[str, ...]:
        """What counted as a step, where that was not an optimizer's."""
        if self._unit is _Unit.TIME:
            return (_BY_CLOCK,)
        if self._calls is not None and self._calls.root_name:
            calls = max(round(self._call_count / max(self.steps, 1)), 1)
            return (
                "no optimizer has stepped: a step is a quarter of a second, here"
                f" {counted(calls, 'call')} of {self._calls.root_name}",
            )
        return ()


def watched(
    request: dict[str, Any], connection: Connection, pauses: Pauses, program_end: ProgramEnd
) -> dict[str, Any]:
    """The parts of the answer: ``leaks``, ``leaks_text``, ``steps``, ``recording``."""
    torch = loaded_torch()
    if torch is None or not torch_is_whole():
        return {"leaks": None, "steps": 0, "notes": ["the program has not imported torch"]}
    recorder = Recorder(
        RecordingPaths(request["recording"], None),
        max_events=int(request["max_events"]),
        redacted=bool(request.get("redact")),
        marks_modules=False,
    )
    with pauses.counted():
        recorder.connect()
    watch = StepWatch(request, pauses, recorder)
    recorder.steps.watch_optimizers()
    recorder.steps.on_step(watch.optimizer_stepped)
    watch.begin(torch)
    program_end.wait_for_answer(watch.program_ends)
    try:
        if recorder.gpu is not None and request["recording"] and recorder.gpu.is_initialized():
            recorder.facts = KnownFacts(recorder.gpu)
            with pauses.counted():
                recorder.start()
        is_wanted = _wait(watch, connection, float(request["seconds"]))
        return _answer(watch.steps, watch.conclude() if is_wanted else None)
    finally:
        recorder.steps.leave_optimizers()
        watch.leave()
        with pauses.counted():
            recorder.stop()


def _wait(watch: StepWatch, connection: Connection, seconds: float) -> bool:
    """Waits for the steps, and says how far they are; whether somebody still wants the answer."""
    began = time.monotonic()
    deadline = began + seconds + _patience(watch)
    reported_steps = -1
    while not watch.is_over.is_set:
        watch.is_over.wait(_LOOKS_EVERY_S)
        if not connection.is_open():
            return False
        if time.monotonic() > deadline:
            break
        watch.tick()
        if watch.steps != reported_steps:
            reported_steps = watch.steps
            with suppress(Exception):
                connection.send({"kind": "progress", "steps": reported_steps})
    return True


def _has_models(torch: Any) -> bool:
    """Whether there is a module whose calls, or an optimizer whose turns, may be steps."""
    waiting = [torch.nn.Module, torch.optim.Optimizer]
    kinds = {}  # by identity: a metaclass may compare as it likes
    while waiting:
        kind = waiting.pop()
        if id(kind) not in kinds:
            kinds[id(kind)] = kind
            waiting += type.__subclasses__(kind)
    # In C, at once: what the program gives up meanwhile would stay until this list is gone.
    return any(map(kinds.__contains__, map(id, map(type, tracked_objects()))))


def _patience(watch: StepWatch) -> float:
    """Seconds for a step that has begun to end."""
    return 2.0 if watch.steps else 0.0


def _answer(steps: int, findings: dict[str, Any] | None) -> dict[str, Any]:
    if findings is None:
        return {"leaks": None, "steps": steps, "recording": None, "notes": [_NO_STEP]}
    return {**findings, "steps": steps}
