"""The answer of ``vramlens.memory()``: all GPUs and the host right now, as figures and as a small
plain table.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vramlens.capture.memory.device_ledger import Ledger, ledgers
from vramlens.capture.memory.driver import driver
from vramlens.capture.torch_api import pinned_memory
from vramlens.foreign_text import text_of
from vramlens.ground.vocabulary import LedgerRow
from vramlens.units import format_size

_WORDS = {
    "driver_reserved": "driver and firmware",
    "pytorch_allocated": "in use by PyTorch",
    "pytorch_cached": "cached by PyTorch (only PyTorch can reuse it)",
    "nccl": "NCCL",
    "this_process_other": "this process outside PyTorch",
    "other_processes": "other processes",
    "outside_pytorch": "outside this process's PyTorch",
    "unknown": "not known",
    "free": "free",
}
_ALREADY_SAID = ("driver_reserved", "outside_pytorch")
"""Rows whose note repeats, or says better, what the row is."""
_GROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""By version of control groups: the files of the limit and of what is used, and what of that is
cached.
"""
_UNLIMITED = 1 << 60
"""Version 1 of cgroups writes a limit of about 2**63 where there is none."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The host's memory and what this process has of it; None where it cannot be read.

    Attributes:
        rss_bytes, peak_rss_bytes: this process's resident memory now, and the most it has been.
        total_bytes, available_bytes: of the machine, or of the container where that has less.
        limit: what sets the total: "machine" or "cgroup".
        pinned_bytes: page-locked memory that PyTorch has handed out.
        pinned_reserved_bytes: the same with what PyTorch keeps for later. Both are None before
            PyTorch uses a GPU, and where its version does not count.
    """

    rss_bytes: int | None = None
    peak_rss_bytes: int | None = None
    total_bytes: int | None = None
    available_bytes: int | None = None
    limit: str = "machine"
    pinned_bytes: int | None = None
    pinned_reserved_bytes: int | None = None

    @property
    def used_bytes(self) -> int | None:
        """All that is not available."""
        if self.total_bytes is None or self.available_bytes is None:
            return None
        return self.total_bytes - self.available_bytes


@dataclass(frozen=True, slots=True, repr=False)
class MemoryNow:
    """All memory right now; printed it is a table.

    Attributes:
        gpus: the ledger of each GPU that this process sees; empty without one.
        notes: what could not be asked, in sentences.
        top_lines: finished lines of text that whoever asked has put in.
    """

    gpus: tuple[Ledger, ...]
    host: HostMemory
    notes: tuple[str, ...] = ()
    top_lines: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All figures, ready for JSON."""
        return {
            "gpus": [gpu.to_dict() for gpu in self.gpus],
            "host": asdict(self.host),
            "notes": list(self.notes),
            "top_lines": list(self.top_lines),
        }

    def __str__(self) -> str:
        return text_of(_lines(self))

    def __repr__(self) -> str:
        return str(self)


def memory(top_lines: Sequence[str] = ()) -> MemoryNow:
    """All memory right now: every visible GPU, by who holds it, and the host. Costs about a
    millisecond a GPU.

    Never initialises CUDA, never waits for the GPU, never raises.

    Args:
        top_lines: finished lines to print below the GPUs, such as the source lines that hold most.
    """
    gpus = ledgers()
    notes: tuple[str, ...] = ()
    if not gpus:
        notes = (_why_no_gpu(),)
    elif "torch" not in sys.modules:
        notes = ("PyTorch is not imported in this process, so none of this memory belongs to it.",)
    return MemoryNow(gpus, host_memory(), notes, tuple(map(str, top_lines)))


def host_memory() -> HostMemory:
    """The host's memory right now."""
    rss, peak = _resident()
    total, available = _machine()
    limit, room = _container()
    source = "machine"
    if limit is not None and (total is None or limit < total):
        total, source = limit, "cgroup"
        available = room if available is None or room is None else min(available, room)
    pinned, pinned_reserved = pinned_memory()
    return HostMemory(
        rss_bytes=rss,
        peak_rss_bytes=peak,
        total_bytes=total,
        available_bytes=available,
        limit=source,
        pinned_bytes=pinned,
        pinned_reserved_bytes=pinned_reserved,
    )


def is_killed_as_group() -> bool:
    """True where the system ends all processes of this one's control group when memory is short."""
    return any(
        _number(os.path.join(folder, "memory.oom.group")) == 1 for folder, _ in _control_groups()
    )


def _why_no_gpu() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    nvml, reason = driver()
    version = getattr(sys.modules.get("torch"), "version", None)
    if getattr(version, "hip", None) or getattr(version, "xpu", None):
        return "No GPU visible yet: an AMD or Intel GPU appears once the program uses it."
    if nvml is not None and visible is not None:
        return f"No GPU is visible to this process: CUDA_VISIBLE_DEVICES is {visible!r}."
    return f"No GPU here: {reason[:1].lower() + reason[1:] if reason else 'the driver shows none.'}"


def _lines(now: MemoryNow) -> Iterator[str]:
    for gpu in now.gpus:
        yield _headline(gpu)
        if len(now.gpus) == 1 or _is_ours(gpu):
            yield from _table(gpu)
        yield from (f"  {note}" for note in gpu.notes)
    yield from now.notes
    yield from now.top_lines
    yield _host_line(now.host)


def _is_ours(gpu: Ledger) -> bool:
    return gpu.has_context or bool(gpu.bytes_of("this_process_other"))


def _headline(gpu: Ledger) -> str:
    name = f"GPU {gpu.device}{f' ({gpu.name})' if gpu.name else ''}"
    if gpu.total_bytes is None:
        return f"{name}: its memory is unknown"
    total, free = format_size(gpu.total_bytes), gpu.bytes_of("free")
    parts = [
        f"size {total}"
        if free is None
        else f"{format_size(gpu.total_bytes - free)} of {total} used"
    ]
    if _is_ours(gpu):
        for kind, word in (("pytorch_allocated", "live"), ("pytorch_cached", "cached")):
            size = gpu.bytes_of(kind)
            parts += [] if size is None else [f"{format_size(size)} {word}"]
    else:
        parts.append(
            "none by this process"
            if gpu.bytes_of("outside_pytorch") is None
            else "none by PyTorch here"
        )
    parts += [] if free is None else [f"{format_size(free)} free"]
    return f"{name}: {', '.join(parts)}"


def _table(gpu: Ledger) -> Iterator[str]:
    rows = [row for row in gpu.rows if row.bytes]
    width = max((len(format_size(row.bytes)) for row in rows), default=0)
    for row in rows:
        yield f"  {format_size(row.bytes):>{width}}  {_row_words(row)}"


def _row_words(row: LedgerRow) -> str:
    sure = " (inferred)" if row.confidence == "inferred" else ""
    if row.kind == "outside_pytorch" and row.note:
        return f"{row.note}{sure}"
    words = _WORDS.get(row.kind, row.kind)
    if not row.note or row.kind in _ALREADY_SAID:
        return f"{words}{sure}"
    separator = ";" if ":" in words else ":"
    return f"{words}{sure}{separator} {row.note}"


def _host_line(host: HostMemory) -> str:
    parts = []
    if host.rss_bytes is not None:
        peak = "" if host.peak_rss_bytes is None else f" (peak {format_size(host.peak_rss_bytes)})"
        parts.append(f"{format_size(host.rss_bytes)} in this process{peak}")
    if host.pinned_reserved_bytes:
        parts.append(f"{format_size(host.pinned_reserved_bytes)} pinned by PyTorch")
    if host.available_bytes is not None and host.total_bytes is not None:
        place = " in this container" if host.limit == "cgroup" else ""
        parts.append(
            f"{format_size(host.available_bytes)} of {format_size(host.total_bytes)}"
            f" available{place}"
        )
    return f"Host: {', '.join(parts) or 'unknown'}"


def _resident() -> tuple[int | None, int | None]:
    """This process's resident bytes and their peak: from /proc, which is quick, else psutil."""
    fields = _kib_fields("/proc/self/status")
    if "VmRSS" in fields:
        return fields["VmRSS"], fields.get("VmHWM")
    try:
        info = importlib.import_module("psutil").Process().memory_info()
        return int(info.rss), getattr(info, "peak_wset", None) or _peak_of_unix()
    except Exception:
        return None, None


def _peak_of_unix() -> int | None:
    try:
        resource = importlib.import_module("resource")
        peak = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    except Exception:
        return None
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, the others KiB


def _machine() -> tuple[int | None, int | None]:
    """The machine's memory, and what of it a program can still have without swapping."""
    fields = _kib_fields("/proc/meminfo")
    if "MemTotal" in fields and "MemAvailable" in fields:
        return fields["MemTotal"], fields["MemAvailable"]
    try:
        info = importlib.import_module("psutil").virtual_memory()
        return int(info.total), int(info.available)
    except Exception:
        return None, None


def _container() -> tuple[int | None, int | None]:
    """The narrowest limit of the control groups that this process is in, and the room left below
    it.
    """
    limits: list[int] = []
    rooms: list[int] = []
    for folder, version in _control_groups():
        limit_file, used_file, cached_entry = _GROUP_FILES[version]
        limit = _number(os.path.join(folder, limit_file))
        used = _number(os.path.join(folder, used_file))
        if limit is None or limit >= _UNLIMITED:
            continue
        limits.append(limit)
        if used is not None:
            # Cached files go first when memory is short: theirs can be had.
            free = limit - used + _stat(folder, cached_entry)
            rooms.append(min(limit, max(0, free)))
    return min(limits, default=None), min(rooms, default=None)


def _control_groups() -> Iterator[tuple[str, int]]:
    """The folders of this process's memory groups, each with its parents, and the version of
    cgroups.
    """
    for line in _text("/proc/self/cgroup").splitlines():
        number, _, entry = line.partition(":")
        controllers, _, path = entry.partition(":")
        if "memory" in controllers.split(","):
            root, version = "/sys/fs/cgroup/memory", 1
        elif number == "0" and not controllers:
            root, version = "/sys/fs/cgroup", 2
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        # In a container the path may be the host's: what is not there is skipped, and the root is
        # the container's own.
        for depth in range(len(parts), -1, -1):
            yield os.path.join(root, *parts[:depth]), version


def _kib_fields(path: str) -> dict[str, int]:
    """The ``Name: 123 kB`` lines of a file in /proc, in bytes."""
    fields = {}
    for line in _text(path).splitlines():
        name, _, amount = line.partition(":")
        words = amount.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdecimal():
            fields[name] = int(words[0]) * 1024
    return fields


def _stat(folder: str, key: str) -> int:
    for line in _text(os.path.join(folder, "memory.stat")).splitlines():
        name, _, number = line.partition(" ")
        if name == key and number.isdecimal():
            return int(number)
    return 0


def _number(path: str) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
