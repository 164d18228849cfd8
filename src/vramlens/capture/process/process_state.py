"""What the system says of another process: whether it runs, and what it has started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

_PYTHON_FILES = ("python", "libpython3")
_MOST_PROCESSES = 200
_GENERATIONS = 4
_IS_EXITING = 0x4
"""``PF_EXITING`` of linux/sched.h, among the flags in ``/proc/PID/stat``."""


def status_of(pid: int | Literal["self"]) -> dict[str, str]:
    """The fields of ``/proc/PID/status`` by name.

    Raises:
        OSError: there is no such process, or no ``/proc``.
    """
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as lines:
        pairs = (line.partition(":") for line in lines)
        return {name: text.strip() for name, _, text in pairs}


def state_of(pid: int) -> str:
    """The letter by which the system calls what a process does; empty where there is none."""
    try:
        return status_of(pid).get("State", "")[:1]
    except (OSError, OverflowError):
        return ""


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or on its way out: without memory and files it may still be
    called running for as long as the system takes its pages back.
    """
    if state_of(pid) in ("", "Z", "X"):
        return True
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return bool(int(fields[6]) & _IS_EXITING)
    except (OSError, IndexError, ValueError):
        return not state_of(pid)


def why_not_running(pid: int) -> str:
    """One line on a process that has ended or is stopped; empty where it runs, or nobody tells."""
    try:
        status = status_of(pid)
    except (OSError, OverflowError):
        return ""
    state = status.get("State", "")[:1]
    if state in ("Z", "X"):
        parent = status.get("PPid", "its parent")
        return f"process {pid} has ended (a zombie, which process {parent} has to collect)"
    if state in ("T", "t"):
        return f"process {pid} is stopped: kill -CONT {pid} continues it"
    return ""


def python_descendants(pid: int) -> list[int]:
    """Processes that a process has started, or those that these have, which run Python; the
    nearest first.
    """
    generation, pythons, count = [pid], [], 0
    for _ in range(_GENERATIONS):
        generation = [child for parent in generation for child in _children(parent)]
        count += len(generation)
        pythons += [child for child in generation if _runs_python(child)]
        if count > _MOST_PROCESSES:
            break
    return pythons


def _children(pid: int) -> Iterator[int]:
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                yield from map(int, file.read().split())
    except (OSError, ValueError):
        return


def _runs_python(pid: int) -> bool:
    """Whether the program's file, or a library of it, is Python's."""
    try:
        if os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith(_PYTHON_FILES):
            return True
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as lines:
            return any("/libpython3" in line for line in lines)
    except OSError:
        return False
