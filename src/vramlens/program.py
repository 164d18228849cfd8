"""The functions that a program calls to have itself watched: one line each, none of which can break
or slow it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vramlens.argument_types import number_given, optional, path_given, takes
from vramlens.capture.process.undisturbed import no_collection
from vramlens.capture.recording.output_path import RecordingPaths
from vramlens.capture.recording.recorder import Recorder, WriteRequest
from vramlens.capture.recording.redact import is_redaction_wanted
from vramlens.capture.recording.session import (
    RecordingPlan,
    Session,
    begin_session,
    current_session,
)
from vramlens.capture.recording.step_marks import manual_step_listeners, say_no_step
from vramlens.capture.triggers.child_processes import follow_children, plan_for_child
from vramlens.capture.warn import harmless, say
from vramlens.errors import UsageError
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.capture.memory.memory_now import MemoryNow
    from vramlens.capture.process_group import DistributedState
    from vramlens.live.follow import LeakFollower

_SUMMARY_SECONDS = 20
_LINES = 5  # that hold most, of each device, in ``memory``


@takes(output=optional(path_given), max_events=optional(number_given))
def install(
    output: str | os.PathLike[str] | None = None,
    *,
    max_events: int | None = None,
    redact: bool | None = None,
) -> None:
    """Watches this program from now on: on any out-of-memory error a recording, and its verdict in
    the exception.

    Call it once, early; a second call changes nothing. Recording begins when the program first uses
    a GPU. ``kill -USR2`` and ``vramlens dump`` write a recording at any time; nothing is written at
    a normal end.

    Args:
        output: a ``.vram`` file or a folder; by default the present folder.
        max_events: events kept for each device; by default what fits in 1 GiB or 2% of the
            machine's memory.
        redact: whether recordings leave out paths, arguments and the host name; by default as the
            environment's VRAMLENS_REDACT=1 says.
    """
    _watch(
        RecordingPlan(
            output=None if output is None else os.fspath(output),
            max_events=max_events,
            redacted=is_redaction_wanted(redact),
        )
    )


@harmless("beginning to watch")
def _watch(plan: RecordingPlan) -> Session | None:
    """The watch of this process; None where it cannot begin (too many open files, say)."""
    return begin_watch(plan)


def begin_watch(plan: RecordingPlan, command: Sequence[str] | None = None) -> Session:
    """Begins the watch of this process by a plan; one that is there already stays."""
    if plan.program is None:
        plan = replace(plan, program=getattr(sys.modules["__main__"], "__file__", None) or "python")
    leaks = _LeaksOfSteps() if plan.leaks else None
    session = begin_session(
        plan, verdict=verdict_of, command=None if command is None else list(command), leaks=leaks
    )
    if plan.at_exit:
        session.summarise = summarise_beside
    if not plan.blocks_only:
        from vramlens.monitor.publisher import publish_inside

        publish_inside(session.recorder.steps)  # for ``vramlens top``
    return session


def summarise_beside(path: str) -> None:
    """Writes the summary of a rank's recording beside it, in a process of its own: the program has
    ended, and waits some seconds at most.
    """
    import subprocess

    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    # What goes wrong costs nothing: the recording is read instead.
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [sys.executable, "-m", "vramlens.fleet.summary_file", path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=_SUMMARY_SECONDS,
            check=False,
        )


class _LeaksOfSteps:
    """The watch for leaks, made when torch is there.

    It brings NumPy, as torch does: imported before the program's own first line, that would fix the
    number of NumPy's threads and the filters of warnings before the program says what it wants.
    """

    def __init__(self) -> None:
        self._follower: LeakFollower | None = None

    def torch_is_there(self, torch: Any) -> None:
        """Once, when the program has imported torch."""
        self._follower = _leak_follower()
        if self._follower is not None:
            self._follower.torch_is_there(torch)

    def step_ended(self, count: int) -> None:
        """After each step."""
        if self._follower is not None:
            self._follower.step_ended(count)

    def program_ended(self) -> None:
        """When the program's last statement has run."""
        if self._follower is not None:
            self._follower.program_ended()

    def tell(self) -> None:
        """Prints what was found so far."""
        if self._follower is None:
            say_no_step()
        else:
            self._follower.tell()

    def tell_after_step(self) -> None:
        """Has the program's thread print it when its step ends, and waits for that."""
        if self._follower is None:
            self.tell()
        else:
            self._follower.tell_after_step()

    def owners(self, kind: str) -> dict[str, Any] | None:
        """The owner of each live storage on devices of a kind, for a recording."""
        return None if self._follower is None else self._follower.owners(kind)


@harmless("watching for leaks")
def _leak_follower() -> LeakFollower:
    with no_collection():  # of all that PyTorch's import made, for nothing
        from vramlens.live.follow import LeakFollower

    return LeakFollower()


def begin_in_child() -> None:
    """Begins the watch of a spawned child as its parent's plan says."""
    plan = plan_for_child()
    if plan is not None:
        begin_watch(plan)
        follow_children(plan)


@takes(path=path_given)
def snapshot(path: str | os.PathLike[str], *, redact: bool | None = None) -> str | None:
    """Writes a recording of now, and gives its path. Without ``install`` or ``record`` it holds the
    state only.

    None, and one line on standard error, where no GPU is in use or the file cannot be written:
    never an exception.

    Args:
        path: the file to write.
        redact: as for ``install``.
    """
    session = current_session()
    recorder = (
        session.recorder if session is not None else Recorder(RecordingPaths(os.fspath(path), None))
    )
    if recorder.gpu is None:
        recorder.connect()
    request = WriteRequest("api", quiet=True, redacted=is_redaction_wanted(redact))
    answer = recorder.write(request, os.fspath(path))
    if "error" in answer:
        say(f"no {os.fspath(path)}: {answer['error']}")
    return answer.get("path")


@takes(path=path_given, max_events=optional(number_given))
@contextmanager
def record(
    path: str | os.PathLike[str], *, max_events: int | None = None, redact: bool | None = None
) -> Iterator[None]:
    """Records what the block does and writes it at the block's end, also when that is an error.

    Inside of another recording (``vramlens run``, ``install``, an outer ``record``) the file holds
    the block's events and the outer one goes on. Without a GPU the block simply runs.

    Args:
        path: the file to write; ``.vram`` is added where it is missing.
        max_events: events kept for each device, where nothing records yet.
        redact: as for ``install``, of what is written inside the block.
    """
    name = os.fspath(path)
    file = name if name.endswith(".vram") else f"{name}.vram"
    session = _watch(RecordingPlan(blocks_only=True))
    redacted = is_redaction_wanted(redact)
    with nullcontext() if session is None else session.block(file, max_events, redacted=redacted):
        yield


def step() -> None:
    """Ends a step. Optional: optimizer steps are seen without it. Cheap, and safe without a GPU
    or a recording.
    """
    for listener in tuple(manual_step_listeners):
        listener()
    session = current_session()
    if session is not None:
        session.recorder.steps.mark()


def memory() -> MemoryNow:
    """Where the memory of every visible GPU is right now, with no set-up: print it, or read its
    fields.

    While this program is recorded, the lines that hold most are there too; then it takes as long as
    reading the events.
    """
    from vramlens.capture.memory.memory_now import memory as now

    session = current_session()
    is_recorded = session is not None and session.recorder.recording
    return now(
        _fullest_lines(session.recorder) or () if session is not None and is_recorded else ()
    )


@harmless("looking for the lines that hold most")
def _fullest_lines(recorder: Recorder) -> list[str]:
    from vramlens.analyses.attribution.attribution import attribute
    from vramlens.analyses.memory.heap import heap_at
    from vramlens.read.live_history import read_history

    if recorder.gpu is None:
        return []
    with no_collection():
        trace = read_history(recorder.gpu.snapshot(), "now")
    lines = []
    for device in trace.devices.values():
        heap = heap_at(attribute(trace, device), len(device.events) - 1)
        lines += [
            f"{format_size(line.bytes):>12}  GPU {device.device}: {line.place}"
            for line in heap.by_line[:_LINES]
        ]
    return lines


def distributed_state() -> DistributedState:
    """This process's place in a distributed job: rank, world size, backend, groups, device."""
    from vramlens.capture.process_group import distributed_state as state

    return state()


def verdict_of(path: str, message: str) -> str:
    """The one-screen verdict on a failure, from its recording and its exception's text."""
    from vramlens.api import explain_recording, load
    from vramlens.read.oom.oom_text import find_oom_messages

    recording = load(path)
    messages = find_oom_messages(io.BytesIO(message.encode("utf-8", "replace")))
    try:
        explanation = explain_recording(recording, messages=messages)
    except UsageError:  # the text is another failure's: two threads, one after the other
        explanation = explain_recording(recording)
    return str(explanation)
