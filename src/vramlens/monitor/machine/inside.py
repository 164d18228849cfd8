"""The inside of a program, its allocator as it tells it to ``vramlens top``: one small file a
process, and no port.

The file is in a folder that only its owner can open; its name is the process's number and the
moment at which it started, so that a number used again is not taken for the old process. A reader
believes a file only if its owner is the process's owner, and takes nothing from it but numbers
within bounds and short texts.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from vramlens.capture.triggers.user_folder import all_folders, is_trusted, names_in, own_folder

SCHEMA = "vramlens-inside/1"
SUFFIX = ".inside"
_LONGEST = 1 << 16
_MOST_BYTES = 1 << 60
_MOST_DEVICES = 64
_LEFT_BEHIND_S = 3600.0
_FRESH_S = 10.0
"""How long a file counts whose process is not to be seen here: it has ended, or runs in another
container.
"""


@dataclass(frozen=True, slots=True)
class InsideDevice:
    """The memory that PyTorch of a program has on one GPU, in bytes; None is what it does not
    count.

    Attributes:
        uuid: the driver's name of the GPU; None where the program could not tell.
        index: CUDA's index in that program.
        step_bytes: allocated when the last step ended; None before the first.
        growth_bytes: what a step leaves behind, by the steps so far; None while that is open.
        steps_left: about how many steps until memory runs out at that rate; None where it does not
            grow.
    """

    index: int
    uuid: str | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_bytes: int | None = None
    nccl_bytes: int | None = None
    step_bytes: int | None = None
    growth_bytes: int | None = None
    steps_left: int | None = None
    retries: int | None = None
    failures: int | None = None


@dataclass(frozen=True, slots=True)
class Inside:
    """The inside of one program.

    Attributes:
        pid: its number where it runs; in a container that may not be the number that others see.
        started: when it started, in clock ticks since the machine did.
        time_us: when this was written, in microseconds since 1970.
        pinned_bytes: page-locked memory of the host that PyTorch has handed out or keeps for later.
        step_us: microseconds that a step takes of late.
        job: the launcher's name for its job.
        is_here: whether the process runs under this number where this is read, not in another
            container.
        owner: the user who wrote it, by number.
    """

    pid: int
    started: int
    time_us: int
    step: int = 0
    rank: int | None = None
    rss_bytes: int | None = None
    pinned_bytes: int | None = None
    program: str = ""
    devices: tuple[InsideDevice, ...] = ()
    step_us: int | None = None
    job: str | None = None
    is_here: bool = True
    owner: int | None = field(default=None, compare=False)


def start_of(pid: int) -> int | None:
    """The moment at which a process started, in clock ticks since the machine did; None where it is
    gone or this is not Linux.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read(4096)
        # The command's name, in parentheses, may hold anything: the fields are counted from its end
        # (proc(5)).
        return int(text.rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def inside_path(pid: int, started: int, folder: str | None = None) -> str:
    """The path of a process's file."""
    return os.path.join(folder or own_folder(), f"{pid}-{started}{SUFFIX}")


def write_inside(path: str, inside: Inside) -> None:
    """Puts the file in place in one step. No flush to the disk: it is of no use after a crash.

    Raises:
        OSError: it cannot be written.
    """
    content = {"schema": SCHEMA, **asdict(inside)}
    for name in _OF_READER:
        del content[name]
    text = json.dumps(content, separators=(",", ":")).encode()
    partial = partial_path(path)
    flags = (
        os.O_WRONLY
        | os.O_CREAT
        | os.O_TRUNC
        | getattr(os, "O_NOFOLLOW", 0)
        | getattr(os, "O_NONBLOCK", 0)
    )
    descriptor = os.open(partial, flags, 0o600)
    try:
        os.write(descriptor, text)
    finally:
        os.close(descriptor)
    os.replace(partial, path)


def partial_path(path: str) -> str:
    """The path under which a file is written before it takes its place."""
    return f"{path}.partial"


def read_insides(folders: list[str] | None = None) -> list[Inside]:
    """The insides of all programs of this user (of all users, for root); files of processes that
    ended are left out.
    """
    programs: dict[tuple[int, int], Inside] = {}
    for folder in all_folders() if folders is None else folders:
        for inside in _in_folder(folder):
            programs.setdefault((inside.pid, inside.started), inside)
    return list(programs.values())


def _in_folder(folder: str) -> Iterator[Inside]:
    if not is_trusted(folder):
        return
    for path, pid, started in _by_name(folder):
        inside = _read(path, pid, started) if path.endswith(SUFFIX) else None
        if inside is not None:
            yield inside


def _by_name(folder: str) -> Iterator[tuple[str, int, int]]:
    """The files of a folder with the process that each names and when it started."""
    for name in names_in(folder):
        pid, _, started = name.removesuffix(".partial").removesuffix(SUFFIX).partition("-")
        if name.endswith((SUFFIX, f"{SUFFIX}.partial")) and _is_number(pid) and _is_number(started):
            yield os.path.join(folder, name), int(pid), int(started)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def remove_leftovers(folder: str) -> None:
    """Takes away the files of processes that were killed, an hour after their last word."""
    oldest_s = time.time() - _LEFT_BEHIND_S
    for path, pid, started in _by_name(folder):
        with contextlib.suppress(OSError):  # another process does the same
            if start_of(pid) != started and os.lstat(path).st_mtime < oldest_s:
                os.unlink(path)


def _read(path: str, pid: int, started: int) -> Inside | None:
    """A file's content; None where it is not what it says, or its process has ended."""
    try:
        descriptor = os.open(
            path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        )
    except OSError:
        return None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > _LONGEST:
            return None
        text = os.read(descriptor, _LONGEST)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        is_here = start_of(pid) == started
        if is_here and os.stat(f"/proc/{pid}").st_uid != about.st_uid:
            return None  # somebody else's process
        inside = replace(_checked(json.loads(text)), is_here=is_here, owner=about.st_uid)
        is_fresh = abs(time.time_ns() // 1000 - inside.time_us) < _FRESH_S * 1e6
        return (
            inside
            if (inside.pid, inside.started) == (pid, started) and (is_here or is_fresh)
            else None
        )
    return None


def _checked(content: Any) -> Inside:
    """The content as figures within bounds.

    Raises:
        ValueError, TypeError: it is something else.
    """
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError
    devices = content.get("devices")
    if not isinstance(devices, list) or len(devices) > _MOST_DEVICES:
        raise ValueError
    figures = _fields_of(Inside, content)
    figures["devices"] = tuple(
        InsideDevice(**_fields_of(InsideDevice, device)) for device in devices
    )
    return Inside(**figures)


_TEXTS = {"uuid", "program", "job"}
_OF_READER = ("is_here", "owner")
_MAY_FALL = ("growth_bytes",)


def _fields_of(kind: type, content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise TypeError
    entries: dict[str, Any] = {}
    for name in (dataclass_field.name for dataclass_field in fields(kind)):
        entry = content.get(name)
        if entry is None or name == "devices" or name in _OF_READER:
            continue
        if not _is_possible(name, entry):
            raise ValueError(name)
        entries[name] = entry
    return entries


def _is_possible(name: str, entry: Any) -> bool:
    """Whether a program of vramlens's may have written this into a field."""
    if name in _TEXTS:
        return isinstance(entry, str) and len(entry) <= 200
    lowest_possible = -_MOST_BYTES if name in _MAY_FALL else 0
    return type(entry) is int and lowest_possible <= entry <= _MOST_BYTES
