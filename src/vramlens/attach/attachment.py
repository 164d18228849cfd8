"""One attach from beginning to end: in, the question, the answer, out."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vramlens import __version__
from vramlens.attach.bootstrap import bootstrap_text
from vramlens.attach.entry import Entry, enter, leave
from vramlens.attach.meeting_point import MeetingPoint
from vramlens.attach.messages import Connection, NoAnswer
from vramlens.attach.sent_sources import sent_sources
from vramlens.attach.target_process import TargetProcess, target_process
from vramlens.capture.process.process_state import has_ended
from vramlens.errors import InputError
from vramlens.units import counted
from vramlens.whole_file import whole_file

_COMES_WITHIN_S = 30.0
_ANSWERS_WITHIN_S = 120.0
_LEAVES_WITHIN_S = 10.0
_LOOKS_EVERY_S = 1.0
_MOST_EVENTS = 200_000
_RECORDING, _SOURCES, _SCRIPT = "recording.vram", "sources", "begin.py"


@dataclass(frozen=True)
class AttachRequest:
    """What is wanted of a process.

    Attributes:
        mode: "look", "watch" or "install".
        steps: how many are watched; 0 for as many as end in ``seconds``.
        seconds: the longest that steps are watched.
        pause_s: the longest that the program may stand still for a search.
        output: where the recording goes; None for nowhere (with "install": the default place).
        copies: whether a copy of this package is sent along.
        max_events: what is recorded of each device.
        top: how many rows each table of "look" gets; 0 for as many as usual.
        redacted: whether the recording leaves out what is private.
    """

    mode: str = "look"
    steps: int = 0
    seconds: float = 0.0
    pause_s: float = 1.0
    output: str | None = None
    copies: bool = False
    max_events: int = _MOST_EVENTS
    top: int = 0
    redacted: bool = False


@dataclass
class Attachment:
    """What came of an attach.

    Attributes:
        answer: what the process said.
        way: how it was entered.
        stopped_s: how long its main thread was stopped from outside.
        recording: the file that was written here; None without.
        notes: what else is to be said.
    """

    answer: dict[str, Any]
    way: str
    stopped_s: float
    recording: str | None = None
    notes: list[str] = field(default_factory=list)


def attach(pid: int, request: AttachRequest, tell: Callable[[int], None]) -> Attachment:
    """Asks a running process.

    Args:
        tell: called with the number of steps that have ended.

    Raises:
        InputError: it cannot be entered, or did not answer; nothing is left in it.
    """
    target = target_process(pid)
    place = MeetingPoint(target)
    keeps_folder = False
    try:
        entry = _entered(target, place, copies=request.copies)
        connection = place.wait_for_process(_COMES_WITHIN_S)
        if connection is None:
            keeps_folder = entry.way == "remote_exec"  # it may open the script later
            raise InputError(_never_came(target))
        taken_back_s = _taken_back(target, connection, entry)
        answer = _conversation(target, connection, _question(request, place, target), request, tell)
        connection.wait_for_end(_LEAVES_WITHIN_S)  # it closes when nothing of us is left in it
        keeps_folder = request.copies and bool(answer.get("installed"))
        attachment = Attachment(
            answer=answer,
            way=entry.way,
            stopped_s=entry.stopped_s + taken_back_s,
            recording=_fetched(answer, place.folder, request.output),
            notes=_notes(answer.get("notes")),
        )
    finally:
        place.close(keeps_folder=keeps_folder)
    return attachment


def _entered(target: TargetProcess, place: MeetingPoint, *, copies: bool) -> Entry:
    """Has the process come to the meeting point.

    Raises:
        InputError: it cannot be entered; that it has ended explains every other reason.
    """
    try:
        package = place.package_inside(copies=copies)
        sources = place.file_inside(_SOURCES, sent_sources())
        text = bootstrap_text(place.address, package, sources, __version__)
        return enter(target, text, lambda script: place.file_inside(_SCRIPT, script))
    except InputError:
        target.check_alive()
        raise


def _notes(notes: Any) -> list[str]:
    return [str(note) for note in notes] if isinstance(notes, list) else []


def _taken_back(target: TargetProcess, connection: Connection, entry: Entry) -> float:
    """Takes back what the way in has left; how long the main thread was stopped for it."""
    for hello in _messages(target, connection, _COMES_WITHIN_S):
        return leave(target, entry) if hello.get("is_read") is True else 0.0
    raise _no_answer(target)


def _question(request: AttachRequest, place: MeetingPoint, target: TargetProcess) -> dict[str, Any]:
    recording = request.output or ""
    if recording and request.mode != "install":
        recording = target.path_inside(place.folder / _RECORDING)
    return {
        "mode": request.mode,
        "steps": request.steps,
        "seconds": request.seconds,
        "pause_s": request.pause_s,
        "max_events": request.max_events,
        "top": request.top,
        "recording": recording,
        "redact": request.redacted,
    }


def _conversation(
    target: TargetProcess,
    connection: Connection,
    question: dict[str, Any],
    request: AttachRequest,
    tell: Callable[[int], None],
) -> dict[str, Any]:
    try:
        connection.send(question)
    except NoAnswer:
        raise _no_answer(target) from None
    steps_ended = 0
    try:
        for message in _messages(target, connection, request.seconds + _ANSWERS_WITHIN_S):
            if message.get("kind") == "answer":
                return message
            steps = message.get("steps")
            if isinstance(steps, int):
                steps_ended = steps
                tell(steps)
    except InputError as error:
        if steps_ended and has_ended(target.pid):
            raise InputError(
                f"{error} after {counted(steps_ended, 'watched step')}, before it could answer:"
                " attach earlier, or watch fewer steps"
            ) from None
        raise
    raise InputError(f"process {target.pid} did not answer in time; it runs on")


def _messages(
    target: TargetProcess, connection: Connection, seconds: float
) -> Iterator[dict[str, Any]]:
    """Yields what the process says in that time.

    Raises:
        InputError: it has ended, has gone away, or says an error.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            message = connection.receive(_LOOKS_EVERY_S)
        except TimeoutError:
            target.check_alive()
            continue
        except NoAnswer:
            raise _no_answer(target) from None
        if message.get("kind") == "error":
            raise InputError(f"process {target.pid}: {message.get('text')}")
        yield message


def _no_answer(target: TargetProcess) -> InputError:
    """What is raised where a process says nothing more.

    Raises:
        InputError: it has ended.
    """
    target.check_alive()
    return InputError(f"process {target.pid} gave no answer; it runs on")


def _never_came(target: TargetProcess) -> str:
    return (
        f"process {target.pid} did not reach a place where Python looks for requests within"
        f" {_COMES_WITHIN_S:.0f} s (it is inside of C code); nothing will happen in it any more:"
        " try again later"
    )


def _fetched(answer: dict[str, Any], folder: Path, output: str | None) -> str | None:
    """Puts the recording that the process wrote where it was asked for; where that is."""
    written = folder / _RECORDING
    if output is None or not answer.get("recording") or not written.exists():
        return None
    # The folder is the process's: what lies there is not followed anywhere else.
    descriptor = os.open(written, os.O_RDONLY | os.O_NOFOLLOW)
    with open(descriptor, "rb") as source:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError("the process wrote no regular file")
        with whole_file(output, is_private=True) as file:
            shutil.copyfileobj(source, file)
    return os.path.abspath(output)
