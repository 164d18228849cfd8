"""The one watch of a process: what ``vramlens run`` and ``vramlens.install`` set going, and when
it writes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from vramlens.capture.process_group import warn_if_not_destroyed, watch_device
from vramlens.capture.recording.flight_file import write_flight_record
from vramlens.capture.recording.nothing_recorded import say_why_nothing
from vramlens.capture.recording.output_path import RecordingPaths, absolute, rank_of_process
from vramlens.capture.recording.profiled_steps import NvtxMarks, ProfiledSteps
from vramlens.capture.recording.recorder import Recorder, WriteRequest
from vramlens.capture.torch_api import loaded_torch
from vramlens.capture.triggers.dump_request import REDACTED
from vramlens.capture.triggers.ending_line import (
    ending_of_exception,
    ending_of_signal,
    uncaught,
)
from vramlens.capture.triggers.on_demand import DumpServer
from vramlens.capture.triggers.on_import import when_imported
from vramlens.capture.triggers.out_of_memory import (
    RECORDED,
    OutOfMemoryWatch,
    RefusedRequest,
    VerdictOf,
)
from vramlens.capture.triggers.sigterm import Termination
from vramlens.capture.warn import harmless, say
from vramlens.units import counted


@dataclass(frozen=True, slots=True)
class RecordingPlan:
    """A plan of what to record and when to write it.

    Attributes:
        output: a ``.vram`` file or a folder; None is the present folder.
        program: what the program is called: its file or module.
        first_step, last_step: record from the beginning of one to the end of the step before the
            other; None without.
        every: write after each so many steps; 0 is never.
        at_exit: whether a recording is written when the program ends, by itself, by SIGTERM or by
            SIGHUP.
        max_events: how many events each device's ring holds; None lets the host's memory decide.
        redacted: whether paths and arguments are left out.
        profile: whether those steps are traced by PyTorch's profiler instead.
        nvtx: whether modules and operators are marked for Nsight Systems.
        is_child: whether this process was spawned by one that is watched.
        blocks_only: whether only the blocks of ``vramlens.record`` are watched.
        leaks: whether leaks are looked for.
    """

    output: str | None = None
    program: str | None = None
    first_step: int | None = None
    last_step: int | None = None
    every: int = 0
    at_exit: bool = False
    max_events: int | None = None
    redacted: bool = False
    profile: bool = False
    nvtx: bool = False
    is_child: bool = False
    blocks_only: bool = False
    leaks: bool = False


class Leaks(Protocol):
    """A watch for leaks while the program runs."""

    def torch_is_there(self, torch: Any) -> None:
        """Once, when the program has imported torch."""

    def step_ended(self, _count: int, /) -> None:
        """After each step."""

    def program_ended(self) -> None:
        """When the program's last statement has run, before anything that Python does at its
        end.
        """

    def tell(self) -> None:
        """Prints what was found so far."""

    def tell_after_step(self) -> None:
        """Has the program's thread print it when its step ends, and waits for that."""

    def owners(self, kind: str) -> dict[str, Any] | None:
        """The owner of each live storage on devices of a kind, for a recording."""


class _End:
    """The end of a program, of which a signal may come in the middle: who comes first writes.

    Attributes:
        is_over: set once a program that ends by itself has nothing more to write.
    """

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self._lock, self._cause = threading.Lock(), ""

    def is_mine(self, cause: str) -> bool:
        """Whether the program ends for this cause: whether none came before it."""
        with self._lock:
            self._cause = self._cause or cause
            return self._cause == cause


class Session:
    """Watches the process from the import of torch to the end."""

    def __init__(
        self,
        plan: RecordingPlan,
        *,
        verdict: VerdictOf | None,
        command: list[str] | None,
        leaks: Leaks | None = None,
    ) -> None:
        self.plan, self._leaks = plan, leaks
        self._pid = os.getpid()
        self.recorder = Recorder(
            RecordingPaths(plan.output, plan.program, is_child=plan.is_child),
            max_events=plan.max_events,
            redacted=plan.redacted,
            command=command,
        )
        self._failures = OutOfMemoryWatch(self._write_failure, verdict)
        self._failures.enabled = not plan.blocks_only
        if leaks is not None:
            self.recorder.owners = leaks.owners
        self._dump_server = DumpServer(self._on_demand, self.recorder.tick)
        self._termination = Termination(
            self._terminated, lambda: self.recorder.paths.folder, self._end_at_signal
        )
        self._began_us = time.time_ns() // 1000
        self._written_at_end: str | None = None
        self._open_blocks = 0
        self._end = _End()
        self._trace = (
            ProfiledSteps(self.recorder.paths, plan.first_step or 0) if plan.profile else None
        )
        self._done = False
        self.summarise: Callable[[str], None] | None = None  # at the end, a rank's own recording

    @harmless("beginning to watch")
    def begin(self) -> None:
        """Begins as soon as the program imports torch, and at the latest moment that changes
        nothing for it.
        """
        watch_device()
        self._dump_server.handle_signal()
        when_imported("torch", self._torch_is_there)
        atexit.register(self._at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def program_ended(self) -> None:
        """The program's last statement has run."""
        if self._leaks is not None and not self._done and self._pid == os.getpid():
            self._leaks.program_ended()

    def cancel(self) -> None:
        """There was no program: nothing to say at the end."""
        self._done = True

    def adopt(self, plan: RecordingPlan) -> None:
        """Goes by another plan from now on: ``install`` after a ``record``."""
        self.plan = plan
        self.recorder.paths, self.recorder.wanted_events = (
            RecordingPaths(plan.output, plan.program),
            plan.max_events,
        )
        self._failures.enabled = True
        if self.recorder.gpu is not None:
            self.recorder.gpu.when_initialized(self.recorder.start)

    @contextlib.contextmanager
    def block(self, path: str, max_events: int | None, *, redacted: bool = False) -> Iterator[None]:
        """Records a block and writes it at its end, however it ends."""
        with self.recorder.redacting(redacted), self._block(path, max_events):
            yield

    @contextlib.contextmanager
    def _block(self, path: str, max_events: int | None) -> Iterator[None]:
        began_us, path = time.time_ns() // 1000, absolute(path)
        is_outermost = self.plan.blocks_only and not self._open_blocks
        self._open_blocks += 1
        if is_outermost:
            self._begin_outermost(path, max_events)
        has_recording = False
        try:
            yield
        except BaseException as error:
            # Of several ranks, or failures, not just ``path``.
            written = getattr(error, "__vramlens_path__", None)
            has_recording = written == path or (is_outermost and written is not None)
            raise
        finally:
            self._open_blocks -= 1
            if not has_recording:
                self._write_block(None if is_outermost else path, began_us)
            if self.plan.blocks_only and not self._open_blocks:
                self.recorder.stop()
                self._failures.enabled = False

    def _begin_outermost(self, path: str, max_events: int | None) -> None:
        recorder = self.recorder
        recorder.paths, recorder.wanted_events = RecordingPaths(path, None), max_events
        self._failures.enabled = True
        if recorder.gpu is not None:
            recorder.gpu.when_initialized(self._start_if_wanted)

    def _write_block(
        self,
        path: str | None,
        since_us: int,
        is_finalizing: Callable[[], bool] = sys.is_finalizing,
    ) -> None:
        """Writes the events since a moment; path None: all of them, to the recorder's next one."""
        # A block that nobody ends is closed when the interpreter has let go of all modules: their
        # names are None, that of ``sys``, too.
        if is_finalizing():
            return
        gpu = self.recorder.gpu
        if gpu is None or not gpu.is_initialized():
            say("the block did not use a GPU, so nothing was recorded")
            return
        if path is None:
            path, since_us = self.recorder.paths.next(), 0
        answer = self.recorder.write(WriteRequest("api", since_us=since_us), path)
        if "error" in answer:
            say(f"no {path}: {answer['error']}")

    @harmless("starting to record")
    def _start_if_wanted(self) -> None:
        if not self.plan.blocks_only or self._open_blocks:
            self.recorder.start()

    @harmless("starting to watch")
    def _torch_is_there(self) -> None:
        recorder = self.recorder
        recorder.connect()
        recorder.steps.watch_optimizers()
        recorder.steps.on_step(recorder.step_ended)
        recorder.steps.on_step(self._step_ended)
        if self._leaks is not None:
            self._leaks.torch_is_there(loaded_torch())
            recorder.steps.on_step(self._leaks.step_ended)
            self._dump_server.start()  # SIGUSR2 asks for the leaks of programs without a GPU, too
            if self.plan.at_exit and not self.plan.is_child:
                self._termination.arm()  # as does SIGTERM
        if self._trace is not None and not self.plan.first_step:
            self._trace.start_with_the_first_module()
        if recorder.gpu is not None:
            recorder.gpu.when_initialized(self._gpu_is_used)

    @harmless("starting to record")
    def _gpu_is_used(self) -> None:
        recorder = self.recorder
        if recorder.gpu is None or self._pid != os.getpid():
            return
        self._failures.attach(recorder.gpu)
        if self.plan.nvtx:
            NvtxMarks().start()
        if self._trace is None:
            recorder.mark_modules()
            if not self.plan.first_step:
                self._start_if_wanted()
        if self._leaks is None:
            self._dump_server.start()
        if self.plan.at_exit and self._trace is None:
            self._termination.arm()

    def _terminated(self, name: str, where: FrameType | None) -> None:
        if not self._end.is_mine("signal"):
            self._end.is_over.wait()
            return
        gpu = self.recorder.gpu
        if gpu is not None and gpu.is_initialized() and not self._died_of_a_failure():
            request = WriteRequest(name.lower(), ending=ending_of_signal(name, where))
            self._written_at_end = self.recorder.write(request).get("path")

    def _end_at_signal(self) -> None:
        """Says what leaks at a signal that ends the program, and leaves the flight record."""
        if self._leaks is not None and not self._done and not self._end.is_over.is_set():
            self._leaks.tell_after_step()
        # The last: the question may wait for a lock that nobody gives back.
        if self._written_at_end is not None and not self.recorder.is_redacting:
            write_flight_record(self._written_at_end, self._began_us)

    def _on_demand(self, trigger: str, path: str | None, *, redacted: bool) -> dict[str, Any]:
        if self._leaks is not None:
            self._leaks.tell_after_step()
        answer = self.recorder.write(WriteRequest(trigger, redacted=redacted), path)
        return {**answer, REDACTED: "yes"} if redacted and "path" in answer else answer

    def _write_failure(self, failure: RefusedRequest) -> str | None:
        request = WriteRequest("oom", failure=failure.to_dict())
        path = self.recorder.write(request, failure.takes_place_of).get("path")
        if self._leaks is not None:
            self._leaks.tell()
        return None if path is None else str(path)

    @harmless("following the steps")
    def _step_ended(self, count: int) -> None:
        plan = self.plan
        if self._done or self._pid != os.getpid():
            return
        if self._trace is not None:
            self._trace_step(count)
        elif plan.last_step is not None:
            if count == plan.first_step:
                self.recorder.start()
            if count >= plan.last_step and self.recorder.recording:
                self.recorder.write(WriteRequest("steps"))
                self.recorder.stop()
                self._done = True
                self._termination.disarm()
        elif plan.every and count % plan.every == 0:
            self.recorder.write(WriteRequest("every", keep_previous=True))

    def _end_of_trace(self) -> None:
        if self._trace is None:
            return
        count, steps = self.recorder.steps.count, f"{self.plan.first_step}:{self.plan.last_step}"
        if loaded_torch() is None:
            say("the program did not import torch, so there is no trace")
        elif count <= (self.plan.first_step or 0):
            say(
                f"the program ended after {counted(count, 'step')} and never reached steps "
                f"{steps}, so there is no trace"
            )
        else:
            if count < (self.plan.last_step or 0):
                say(
                    f"the program ended after {counted(count, 'step')}, before steps {steps} were "
                    "complete"
                )
            self._trace.stop()
            if self._trace.is_tracing:
                say("there is no trace: the thread that it began on ends no step any more")

    def _trace_step(self, count: int) -> None:
        if self._trace is None or self.plan.last_step is None:
            return
        if count == self.plan.first_step:
            self._trace.start()
        elif count >= self.plan.last_step:
            self._trace.stop()
            self._done = not self._trace.is_tracing
        else:
            self._trace.step()

    @harmless("writing at the end of the program")
    def _at_exit(self) -> None:
        if self._pid != os.getpid():
            return
        # A launcher sends SIGTERM as soon as another rank has failed: what is begun is written first.
        try:
            if self._end.is_mine("exit"):
                try:
                    self._end_by_itself()
                finally:
                    self._end.is_over.set()
        finally:
            self._termination.stop()

    def _end_by_itself(self) -> None:
        """Writes and says what is left at the program's end."""
        self._dump_server.stop()
        left_over = warn_if_not_destroyed()
        if left_over is not None:
            say(left_over)
        # A loader's worker, a manager, a resource tracker: nobody asked about those.
        if self._is_idle_child():
            return
        if self._leaks is not None and not self._done:
            self._leaks.tell()
        if not self.plan.at_exit or self._done:
            return
        if self._trace is not None:
            self._end_of_trace()
        else:
            self._write_at_exit()

    def _write_at_exit(self) -> None:
        gpu = self.recorder.gpu
        if gpu is None or not gpu.is_initialized():
            is_visible = gpu is not None and gpu.is_visible()
            say_why_nothing(self.plan.program, is_visible=is_visible, leaks=self.plan.leaks)
            return
        error = uncaught()
        path = getattr(error, "__vramlens_path__", None)
        if not self._died_of_a_failure():
            request = WriteRequest("exit")
            if error is not None:
                request = WriteRequest("error", ending=ending_of_exception(error))
            path = self.recorder.write(request).get("path")
            self._written_at_end = path
        self._summarise_rank(path)

    @harmless("summing up the recording")
    def _summarise_rank(self, path: str | None) -> None:
        """Has the recording of a rank summed up beside it, for ``vramlens ranks``."""
        if self.summarise is not None and path is not None and rank_of_process() is not None:
            self.summarise(path)

    def _is_idle_child(self) -> bool:
        """True where this is a spawned child in which nothing happened that could be told."""
        gpu = self.recorder.gpu
        uses_gpu = gpu is not None and gpu.is_initialized()
        return self.plan.is_child and not uses_gpu and not self.recorder.steps.count

    def _died_of_a_failure(self) -> bool:
        """True where the program ends with an out-of-memory error: it has its recording already."""
        last = uncaught()
        # DataParallel and others raise a new exception with the first one's whole traceback as its
        # text.
        return getattr(last, "__vramlens_path__", None) is not None or RECORDED in str(last)

    def _forget(self) -> None:
        """In a forked child: it has no thread, no recorder and no GPU of its own."""
        self._end = _End()
        self._failures.enabled = False
        self.recorder.recording = False
        self._termination.disarm()
        self._dump_server.close()


_current: Session | None = None


def current_session() -> Session | None:
    """The watch of this process, if there is one; a forked child has none."""
    return _current if _current is not None and _current._pid == os.getpid() else None


def begin_session(
    plan: RecordingPlan,
    *,
    verdict: VerdictOf | None,
    command: list[str] | None = None,
    leaks: Leaks | None = None,
) -> Session:
    """Begins the watch of this process; the one that is there already stays as it is."""
    global _current
    session = current_session()
    if session is None:
        session = _current = Session(plan, verdict=verdict, command=command, leaks=leaks)
        session.begin()
    elif session.plan.blocks_only and not plan.blocks_only:
        session.adopt(plan)
    if plan.redacted:
        session.recorder.redact()
    return session
