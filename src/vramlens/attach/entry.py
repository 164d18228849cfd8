"""The ways into a foreign interpreter, tried in order.

1. ``sys.remote_exec`` (PEP 768), where the process runs Python 3.14 or newer and a Python of that
   very version can be started here: the interpreter's own way, nothing is stopped.
2. ``injection``: ptrace, for a moment of about a millisecond.

What stops a thread of another process runs in a child of this program that hears no signal: were
it ended in the middle, the process would be left with a call that nobody takes back.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from vramlens.attach import injection
from vramlens.attach.injection import Injected, NoPython
from vramlens.attach.python_symbols import mappings_of, python_image
from vramlens.attach.stopped_thread import NotPermitted, ThreadLost, is_supported
from vramlens.attach.target_process import (
    TargetProcess,
    is_parked,
    no_python,
    permission_remedy,
)
from vramlens.capture.process.process_state import why_not_running
from vramlens.errors import InputError

_FIRST_WITH_REMOTE_EXEC = 0x030E0000
_REMOTE_EXEC = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"
_REMOTE_EXEC_WITHIN_S = 30.0
_NOT_ENABLED = "not enabled in the remote process"
_ERRORS = {kind.__name__: kind for kind in (NotPermitted, ThreadLost, NoPython)}


@dataclass(frozen=True)
class Entry:
    """A text on its way into a process.

    Attributes:
        way: "remote_exec", "pending_call" or "thread".
        injected: what ``leave`` takes back; None where there is nothing.
    """

    way: str
    injected: Injected | None = None

    @property
    def stopped_s(self) -> float:
        """How long its main thread was stopped from outside."""
        return 0.0 if self.injected is None else self.injected.stopped_s


def enter(target: TargetProcess, text: bytes, send: Callable[[bytes], str]) -> Entry:
    """Has a process run a text of Python soon.

    Args:
        send: puts a script where the process can read it; its path there.

    Raises:
        InputError: it cannot be done; nothing was changed.
    """
    version = _python_version(target.pid)
    is_waiting = is_parked(target.pid)
    # The interpreter's own way waits until the main thread does, however long that is.
    has_own_way = version is not None and version >= _FIRST_WITH_REMOTE_EXEC
    is_first_choice = has_own_way and not (is_waiting and is_supported())
    if is_first_choice and _is_sent(target, send(text), version or 0):
        return Entry("remote_exec")
    if not is_supported():
        raise InputError(
            "attach needs Linux on x86-64, or Python 3.14 in the process: here use vramlens run"
        )
    injected = _guarded(
        target.pid, lambda: injection.inject(target.pid, text, is_parked=is_waiting)
    )
    return Entry(injected.way, injected)


def leave(target: TargetProcess, entry: Entry) -> float:
    """Takes back what an entry left in the process, once it has been read; how long its main
    thread was stopped for that.
    """
    injected = entry.injected
    if injected is None:
        return 0.0
    try:
        return _guarded(target.pid, lambda: injection.take_back(target.pid, injected)).stopped_s
    except InputError:  # it has ended, or is traced by now: a page stays
        return 0.0


def _python_version(pid: int) -> int | None:
    """``PY_VERSION_HEX`` of the interpreter in a process; None where it does not say (3.10).

    Raises:
        InputError: there is no Python in it, or this user may not look.
    """
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            image = python_image(
                mappings_of(pid), lambda address, size: os.pread(memory, size, address)
            )
            if image is None:
                raise InputError(no_python(pid))
            place = image.elf.addresses.get("Py_Version")
            return None if place is None else int.from_bytes(os.pread(memory, 4, place), "little")
        finally:
            os.close(memory)
    except PermissionError:
        raise InputError(permission_remedy(pid)) from None
    except OSError:  # it has no memory of its own: it has ended, or is the kernel's
        raise InputError(why_not_running(pid) or no_python(pid)) from None


def _is_sent(target: TargetProcess, script: str, version: int) -> bool:
    """Whether the interpreter took the script by its own way.

    Raises:
        InputError: it was told to take none.
    """
    if sys.version_info[:2] == (version >> 24, version >> 16 & 0xFF):
        python = sys.executable
    else:
        python = target.path_outside(target.executable)
    command = [python, "-I", "-S", "-c", _REMOTE_EXEC, str(target.pid), script]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_REMOTE_EXEC_WITHIN_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    if _NOT_ENABLED in done.stderr:
        raise InputError(
            f"process {target.pid} was started with remote debugging disabled "
            "(PYTHON_DISABLE_REMOTE_DEBUG or -X disable_remote_debug): start it without"
        )
    return done.returncode == 0


def _guarded(pid: int, work: Callable[[], Injected]) -> Injected:
    """What some work gives that a child of ours does, which no signal ends half-way.

    Raises:
        InputError: it could not be done, in words for the user.
    """
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        _work_and_exit(work, writable)
    os.close(writable)
    with open(readable, "rb") as pipe:
        raw = pipe.read()
    os.waitpid(child, 0)
    try:
        outcome: dict[str, Any] = json.loads(raw)
    except ValueError:
        raise InputError(f"process {pid}: the way into it failed; it runs on") from None
    if "error" not in outcome:
        return Injected(**outcome)
    raise _refusal(pid, outcome["error"], outcome["text"])


def _work_and_exit(work: Callable[[], Injected], writable: int) -> None:
    """In the child: does the work, writes what came of it, ends."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.setsid()
        outcome: dict[str, Any] = asdict(work())
    except BaseException as error:
        outcome = {"error": type(error).__name__, "text": str(error)}
    try:
        os.write(writable, json.dumps(outcome).encode())
    finally:
        os._exit(0)


def _refusal(pid: int, name: str, text: str) -> InputError:
    kind = _ERRORS.get(name)
    if kind is NoPython:
        return InputError(no_python(pid))
    if kind is NotPermitted:
        return InputError(permission_remedy(pid))
    if kind is ThreadLost:
        return InputError(f"process {pid}: {text}; nothing was changed, try again")
    return InputError(f"process {pid}: the way into it failed ({name}: {text}); it runs on")
