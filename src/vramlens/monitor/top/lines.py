"""The machine as plain lines: what is fullest first, then a row a GPU, then a row a process."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from unicodedata import combining, east_asian_width

from vramlens.monitor.machine.inside import InsideDevice
from vramlens.monitor.machine.kinds import KINDS
from vramlens.monitor.machine.machine import DeviceNow, MachineNow, ProcessNow
from vramlens.monitor.step_pace import clock_words, seconds_left
from vramlens.monitor.top.history import History
from vramlens.units import GIB, counted, format_size

GPU_HEADER = (
    "GPU",
    "used",
    "free",
    "live",
    "cached",
    "nccl",
    "other",
    "of GiB",
    "busy",
    "temp",
    "power",
    "trend",
)
PROCESS_HEADER = (
    "PID",
    "user",
    "GPU",
    "used",
    "live",
    "cached",
    "nccl",
    "host",
    "step",
    "per step",
    "trend",
    "command",
)
_LEFT = ("user", "command", "product")
_NARROWEST_COMMAND = 16
_GIVES_WAY = ("power", "host", "trend", "nccl", "temp", "step", "user", "cached", "of GiB")
"""Columns that are left out, in this order, where the screen is narrow."""
_INSIDE_KINDS = ("pytorch_allocated", "pytorch_cached", "nccl")
_OTHER_KINDS = ("other_processes", "outside_pytorch", "unknown", "driver_reserved")
NOT_INSIDE = InsideDevice(index=-1)
"""What a process that tells nothing of its allocator has on a GPU."""
NOTHING = "-"


def headline(now: MachineNow) -> str:
    """The one sentence that says how things are."""
    sized = [
        device for device in now.devices if device.total_bytes and device.used_bytes is not None
    ]
    if not now.devices:
        return f"No GPU to show. {' '.join(now.notes)}".rstrip()
    if not sized:
        return f"{counted(len(now.devices), 'GPU')}, and the driver reports no numbers for any."
    soonest = _soonest(now)
    if soonest is not None:
        process, device, steps_left = soonest
        step_us = None if process.inside is None else process.inside.step_us
        moment = clock_words(seconds_left(steps_left, step_us))
        return (
            f"Process {process.pid} will run out of memory on GPU {device.name}"
            f" in about {counted(steps_left, 'step')}{moment}."
        )
    fullest = max(sized, key=_share)
    used, total = fullest.used_bytes or 0, fullest.total_bytes or 0
    subject = f"GPU {fullest.name}"
    if len(now.devices) > 1:
        subject = f"Fullest of {len(now.devices)} GPUs is {fullest.name}"
    return (
        f"{subject}: {format_size(used)} of {format_size(total)} used"
        f" ({100 * _share(fullest):.0f}%), {format_size(total - used)} free."
    )


def machine_lines(
    now: MachineNow, history: History | None = None, width: int = 100, *, is_again: bool = False
) -> list[str]:
    """All of it as lines no wider than ``width``; that there is no GPU is not told again."""
    if is_again and not now.devices:
        return [cut(host_line(now), width)]
    lines = textwrap.wrap(headline(now), width, break_on_hyphens=False)
    if now.devices:
        cells = [gpu_cells(device, history) for device in now.devices]
        lines += ["", *table(GPU_HEADER, cells, width)]
    for device in now.devices:
        for note in device.notes:
            lines += textwrap.wrap(
                f"GPU {device.name}: {note}",
                width,
                initial_indent="  ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
    rows = [process_cells(process, device, history) for process, device in now.rows()]
    if rows:
        lines += ["", *table(PROCESS_HEADER, rows, width)]
    elif any(device.processes is not None for device in now.devices):
        lines += ["", "No process uses a GPU."]
    lines += [cut(line, width) for line in footnotes(now)]
    return [*lines, "", cut(host_line(now), width), *next_lines(now)]


def gpu_cells(device: DeviceNow, history: History | None = None) -> tuple[str, ...]:
    """The cells of a GPU's row, in GiB where no unit stands."""
    kinds = device.kinds()
    inside = [kinds.get(kind) for kind in _INSIDE_KINDS]
    other = sum(kinds.get(kind, 0) for kind in _OTHER_KINDS)
    change = None if history is None else history.per_minute("used", device.name)
    return (
        device.name,
        _gib(device.used_bytes),
        _gib(device.free_bytes),
        *(_gib(size if any(inside) else None) for size in inside),
        _gib(other if kinds else None),
        _gib(device.total_bytes),
        or_nothing(device.gpu_percent, "{}%"),
        or_nothing(device.temperature_c, "{} C"),
        or_nothing(device.power_w, "{:.0f} W"),
        trend_words(change),
    )


def process_cells(
    process: ProcessNow, device: DeviceNow, history: History | None = None
) -> tuple[str, ...]:
    """The cells of a process's row, in GiB where no unit stands."""
    memory = process.memory_on(device) or NOT_INSIDE
    live, reserved, growth = memory.allocated_bytes, memory.reserved_bytes, memory.growth_bytes
    cached = None if live is None or reserved is None else max(0, reserved - live)
    step = process.inside.step if process.inside is not None else 0
    change = None if history is None else history.per_minute("process", process.pid, device.name)
    return (
        f"{process.pid}{'*' if process.is_inferred else ''}",
        printable(process.user or NOTHING),
        device.name,
        _gib(process.used_bytes),
        _gib(live),
        _gib(cached),
        _gib(memory.nccl_bytes),
        _gib(process.rss_bytes),
        or_nothing(step or None, "{:,}"),
        NOTHING if growth is None else f"+{format_size(growth)}",
        trend_words(change),
        printable(process.command or "(not visible from here)"),
    )


def footnotes(now: MachineNow) -> Iterator[str]:
    """Yields the meaning of the marks in the table."""
    if any(process.is_inferred for process, _ in now.rows()):
        yield (
            "  * a program under vramlens that the driver does not list by this number:"
            " matched by elimination"
        )


def next_lines(now: MachineNow) -> list[str]:
    """The one next step: for the program that runs out soonest, else for whoever cannot be seen
    inside.
    """
    soonest = _soonest(now)
    if soonest is not None:
        pid = soonest[0].pid
        return [
            "Next, find out what keeps it:",
            f"  vramlens dump {pid} -o now.vram && vramlens leaks now.vram",
        ]
    if not now.devices:
        return [
            "Next, find out why: vramlens doctor",
            "Leaks on the CPU: vramlens run --leaks YOUR_SCRIPT.py",
        ]
    programs = [process for process, _ in now.rows() if process.inside is not None]
    if programs:
        return [f"Next, one program in detail: vramlens top {programs[0].pid}"]
    if now.rows():
        return ["Next, see what a program uses inside PyTorch:", "  vramlens run train.py"]
    return []


def host_line(now: MachineNow) -> str:
    """The host's memory."""
    host, parts = now.host, []
    if host.used_bytes is not None:
        container = " of this container" if host.limit == "cgroup" else ""
        total = format_size(host.total_bytes or 0)
        parts.append(f"{format_size(host.used_bytes)} of {total}{container} used")
    programs = [process.inside for process, _ in now.rows() if process.inside is not None]
    # A program on several GPUs pins its memory once.
    pinned = {(inside.pid, inside.started): inside.pinned_bytes or 0 for inside in programs}
    if any(pinned.values()):
        parts.append(f"{format_size(sum(pinned.values()))} pinned by PyTorch")
    driver = f"; driver {now.driver_version}" if now.driver_version else ""
    return f"Host: {', '.join(parts) or 'not known'}{driver}"


def kind_lines(device: DeviceNow) -> list[str]:
    """A GPU's memory: a line a kind that has any."""
    kinds = {kind: size for kind, size in device.kinds().items() if size}
    width = max((len(format_size(size)) for size in kinds.values()), default=0)
    return [f"  {format_size(size):>{width}}  {KINDS[kind]}" for kind, size in kinds.items()]


def table(header: tuple[str, ...], rows: list[tuple[str, ...]], width: int) -> list[str]:
    """A table no wider than ``width``: columns with nothing in them are left out, the last is
    cut.
    """
    columns = {name: [row[at] for row in rows] for at, name in enumerate(header)}
    widths = {
        name: max(map(len, (name, *cells)))
        for name, cells in columns.items()
        if name in (header[0], "command") or set(cells) - {NOTHING}
    }
    for name in _GIVES_WAY:
        if _least_width(widths) <= width:
            break
        widths.pop(name, None)
    padded = [_padded(name, columns[name], widths[name]) for name in widths]
    return [cut("  ".join(cells).rstrip(), width) for cells in zip(*padded, strict=True)]


def _padded(name: str, cells: list[str], width: int) -> list[str]:
    """A column's name and its cells, each as wide as the column."""
    if name in _LEFT:
        return [cell.ljust(width) for cell in (name, *cells)]
    return [cell.rjust(width) for cell in (name, *cells)]


def _least_width(widths: Mapping[str, int]) -> int:
    """The width of a table of such columns; only the command may be cut."""
    cells = {**widths, "command": min(widths.get("command", 0), _NARROWEST_COMMAND)}
    return sum(cells.values()) + 2 * (len(widths) - 1)


def cut(text: str, width: int) -> str:
    """The text, no longer than ``width``; where it is, an ellipsis says so."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def trend_words(change_bytes: float | None) -> str:
    """A change by minute, such as ``+120 MiB/min``; ``steady`` below a MiB."""
    if change_bytes is None:
        return NOTHING
    mib = change_bytes / (1 << 20)
    if abs(mib) < 1:
        return "steady"
    return f"{mib:+,.0f} MiB/min" if abs(mib) < 10240 else f"{mib / 1024:+,.1f} GiB/min"


def _soonest(now: MachineNow) -> tuple[ProcessNow, DeviceNow, int] | None:
    """The process that runs out of memory first, where, and in how many steps."""
    growing = []
    for process, device in now.rows():
        memory = process.memory_on(device)
        if memory is not None and memory.steps_left is not None:
            growing.append((process, device, int(memory.steps_left)))
    return min(growing, key=lambda row: row[2], default=None)


def _share(device: DeviceNow) -> float:
    return (device.used_bytes or 0) / (device.total_bytes or 1)


def or_nothing(figure: float | None, pattern: str) -> str:
    """A figure as the pattern says; a dash where there is none."""
    return NOTHING if figure is None else pattern.format(figure)


def _gib(size_bytes: int | None) -> str:
    return NOTHING if size_bytes is None else f"{size_bytes / GIB:.2f}"


def printable(text: str) -> str:
    """Characters of one cell each; the rest, and whatever would steer a terminal, as an escape:
    it is any program's.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if _is_one_cell(char) else char.encode("unicode_escape").decode() for char in text
    )


def _is_one_cell(char: str) -> bool:
    return char.isprintable() and east_asian_width(char) not in "WF" and not combining(char)
