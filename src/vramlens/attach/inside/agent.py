"""The thread in the other process: it answers one question and goes away.

The program's own threads run on beside it, except while it keeps the interpreter's lock
(``pauses`` says for how long).
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from vramlens.attach.inside.gentle_imports import GentleImports
from vramlens.attach.inside.pauses import Pauses
from vramlens.attach.inside.program_end import ProgramEnd
from vramlens.attach.messages import Connection, NoAnswer
from vramlens.capture import warn
from vramlens.capture.memory import driver
from vramlens.capture.process.own_thread import wait
from vramlens.capture.process.tracked_objects import tracked_count

_ASKS_WITHIN_S = 10.0
_ENDS_WITHIN_S = 2.0
_LOOKS_EVERY_S = 0.005


def serve(socket: Any, starter: int, imports: GentleImports, paused_s: Sequence[float]) -> bool:
    """Answers whoever attached; whether vramlens is to stay in this process.

    Args:
        socket: a socket to them.
        starter: the thread that started this one.
        imports: find the modules that were sent along.
        paused_s: the pauses so far, in seconds.
    """
    connection = Connection(socket)
    if hasattr(signal, "pthread_sigmask"):  # the program's signals are its own threads' business
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    refusal = _refusal()
    if refusal:
        connection.send({"kind": "error", "text": refusal})
        return False
    stays = False
    notes: list[str] = []
    pauses = Pauses()
    for seconds in paused_s:
        pauses.add(seconds)
    with (
        suppress(NoAnswer, TimeoutError),
        warn.heard_by(notes.append),
        driver.shut_down_afterwards(),
        ProgramEnd(pauses) as program_end,
    ):
        connection.send({"kind": "hello", "is_read": _is_gone(starter)})
        request = connection.receive(_ASKS_WITHIN_S)
        stays = request.get("mode") == "install"
        answer = _answer(request, connection, imports, pauses, program_end)
        answer["notes"] = [*answer.get("notes", ()), *notes]
        answer["has_ended"] = program_end.has_come
        connection.send({"kind": "answer", **answer})
    return stays


def _is_gone(starter: int) -> bool:
    """Whether the text that started this thread is no longer needed by who ran it: the main
    thread has read it, a thread of its own has ended.
    """
    if starter == os.getpid():
        return True
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while os.path.exists(f"/proc/self/task/{starter}"):
        if time.monotonic() > deadline:
            return False
        wait(_LOOKS_EVERY_S)
    return os.path.exists("/proc/self/task")


def _refusal() -> str:
    """Why nothing can be done here, in one line; empty where something can."""
    is_locked = getattr(sys, "_is_gil_enabled", lambda: True)
    if sys.implementation.name != "cpython" or not is_locked():
        return "it runs a Python without the interpreter lock: its heap cannot be searched safely"
    return ""


def _answer(
    request: dict[str, Any],
    connection: Connection,
    imports: GentleImports,
    pauses: Pauses,
    program_end: ProgramEnd,
) -> dict[str, Any]:
    with pauses.counted():
        facts: dict[str, Any] = {"process": _process_facts(), "request": request.get("mode")}
    if request.get("mode") == "install":
        with imports.resting(pauses.add):
            from vramlens.attach.inside.installation import installed
        return {**facts, **installed(request), "pause": pauses.to_dict()}
    if request.get("mode") == "watch":
        with imports.resting(pauses.add):
            from vramlens.attach.inside.step_watch import watched
        facts.update(watched(request, connection, pauses, program_end))
    else:
        with imports.resting(pauses.add):
            from vramlens.attach.inside.state_now import state_now
        facts.update(state_now(request, pauses))
    return {**facts, "pause": pauses.to_dict()}


def _process_facts() -> dict[str, Any]:
    torch: Any = sys.modules.get("torch")
    return {
        "pid": os.getpid(),
        "python": platform.python_version(),
        "torch": None if torch is None else str(getattr(torch, "__version__", "")) or None,
        "command": list(sys.orig_argv),
        "tracked_objects": tracked_count(),
    }
