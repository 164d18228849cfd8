"""Processes on the host: their user, command and memory; what may not be read or has
ended is None.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass

from vramlens.monitor.machine.inside import start_of

_HAS_PROC = os.path.exists("/proc/self/stat")
_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process as the host knows it.

    Attributes:
        uid: the user's number; None where the system has none.
        started: clock ticks since the machine's start; tells a number used again from the old
            process.
        pids: its numbers in all namespaces that are seen from here, the outermost first.
    """

    user: str | None = None
    command: str | None = None
    started: int | None = None
    pids: tuple[int, ...] = ()
    uid: int | None = None


class HostProcesses:
    """Looks processes up and keeps what does not change. In a container whose driver counts as
    the host does, a number is believed only if its process here has a GPU's device open.
    """

    def __init__(self, *, sees_host_pids: bool) -> None:
        self._sees_host_pids = sees_host_pids
        self._known: dict[int, HostProcess] = {}

    def get(self, pid: int) -> HostProcess:
        """The process with this number of the driver's; nothing of it where it is not ours to
        see.
        """
        started = _started(pid)
        host_process = self._known.get(pid)
        if host_process is None or host_process.started != started:
            host_process = self._look(pid, started)
            self._known[pid] = host_process
        return host_process

    def keep_only(self, pids: set[int]) -> None:
        """Forgets all others."""
        for pid in set(self._known) - pids:
            del self._known[pid]

    def _look(self, pid: int, started: int | None) -> HostProcess:
        if started is None or not (self._sees_host_pids or _uses_gpu(pid)):
            return HostProcess()
        uid = _uid(pid)
        return HostProcess(
            user=_user(pid, uid), command=_command(pid), started=started, pids=_pids(pid), uid=uid
        )


def rss_bytes(pid: int) -> int | None:
    """The resident memory of a process."""
    if not _HAS_PROC:
        info = _psutil(pid, "memory_info")
        return None if info is None else int(info.rss)  # type: ignore[attr-defined]
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read(256).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _started(pid: int) -> int | None:
    if not _HAS_PROC:
        created = _psutil(pid, "create_time")
        return None if created is None else int(created)  # type: ignore[call-overload]
    return start_of(pid)


def _uses_gpu(pid: int) -> bool:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for name in names[:_LONGEST]:
        try:
            if os.readlink(f"/proc/{pid}/fd/{name}").startswith("/dev/nvidia"):
                return True
        except OSError:
            continue
    return False


def _uid(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid if _HAS_PROC else None
    except OSError:
        return None


def _user(pid: int, uid: int | None) -> str | None:
    if not _HAS_PROC:
        name = _psutil(pid, "username")
        return None if name is None else str(name)
    if uid is None:
        return None
    try:
        return str(importlib.import_module("pwd").getpwuid(uid).pw_name)
    except (KeyError, ImportError):  # a container without that user
        return str(uid)


def _command(pid: int) -> str | None:
    if not _HAS_PROC:
        parts = _psutil(pid, "cmdline")
        return " ".join(parts) if isinstance(parts, list) and parts else None
    for name in ("cmdline", "comm"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                text = file.read(_LONGEST).replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue
        if text:
            return text
    return None


def _pids(pid: int) -> tuple[int, ...]:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            line = next((text for text in file if text.startswith("NSpid:")), "")
        return tuple(int(word) for word in line.split()[1:]) or (pid,)
    except (OSError, ValueError):
        return (pid,)


def _psutil(pid: int, question: str) -> object:
    try:
        return getattr(importlib.import_module("psutil").Process(pid), question)()
    except Exception:
        return None
