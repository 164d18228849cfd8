"""The machine as plain lines: what is fullest first, then a row a GPU, then a row a process."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from unicodedata import combining, east_asian_width

from vramlens.monitor.machine.kinds import KINDS
from vramlens.monitor.machine.machine import DeviceNow, MachineNow, ProcessNow, held_on
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
NOTHING = "-"


def headline(now: MachineNow) -> str:
    """The one sentence that says how things are."""
    known = [
        device for device in now.devices if device.total_bytes and device.used_bytes is not None
    ]
    if not known:
        if now.devices:
            return f"{counted(len(now.devices), 'GPU')}, and the driver gives no figures for any."
        return f"No GPU to show. {' '.join(now.notes)}".rstrip()
    soonest = _soonest(now)
    if soonest is not None:
        process, device, left = soonest
        return f"Process {process.pid} will run out of memory on GPU {device.name} in about {counted(left, 'step')}."
    fullest = max(known, key=_share)
    used, total = fullest.used_bytes or 0, fullest.total_bytes or 0
    which = (
        f"GPU {fullest.name}"
        if len(now.devices) == 1
        else f"Fullest of {len(now.devices)} GPUs is {fullest.name}"
    )
    return (
        f"{which}: {format_size(used)} of {format_size(total)} used ({100 * _share(fullest):.0f} %), "
        f"{format_size(total - used)} free."
    )


def machine_lines(
    now: MachineNow, history: History | None = None, width: int = 100, *, is_again: bool = False
) -> list[str]:
    """All of it as lines no wider than ``width``; that there is no GPU is not told again."""
    if is_again and not now.devices:
        return [cut(host_line(now), width)]
    lines = textwrap.wrap(headline(now), width, break_on_hyphens=False)
    if now.devices:
        lines += [
            "",
            *table(GPU_HEADER, [gpu_cells(device, history) for device in now.devices], width),
        ]
    for device in now.devices:
        for note in device.notes:
            lines += textwrap.wrap(
                f"GPU {device.name}: {note}", width, initial_indent="  ", subsequent_indent="    "
            )
    rows = [
        process_cells(process, device, history)
        for device in now.devices
        for process in device.processes or ()
    ]
    if rows:
        lines += ["", *table(PROCESS_HEADER, rows, width)]
    elif any(device.processes is not None for device in now.devices):
        lines += ["", "No process uses a GPU."]
    lines += [cut(line, width) for line in footnotes(now)]
    lines += ["", cut(host_line(now), width)]
    return [*lines, *next_lines(now)]


def gpu_cells(device: DeviceNow, history: History | None = None) -> tuple[str, ...]:
    """The cells of a GPU's row, in GiB where no unit stands."""
    kinds = device.kinds()
    has_inside = any(kinds.get(kind) for kind in ("pytorch_allocated", "pytorch_cached", "nccl"))
    power = NOTHING if device.power_w is None else f"{device.power_w:.0f} W"
    change = None if history is None else history.per_minute("used", device.name)
    other = sum(
        kinds.get(kind, 0)
        for kind in ("other_processes", "outside_pytorch", "unknown", "driver_reserved")
    )
    return (
        device.name,
        _gib(device.used_bytes),
        _gib(device.free_bytes),
        *(
            _gib(kinds.get(kind)) if has_inside else NOTHING
            for kind in ("pytorch_allocated", "pytorch_cached", "nccl")
        ),
        _gib(other) if kinds else NOTHING,
        _gib(device.total_bytes),
        NOTHING if device.gpu_percent is None else f"{device.gpu_percent} %",
        NOTHING if device.temperature_c is None else f"{device.temperature_c} C",
        power,
        trend_words(change),
    )


def process_cells(
    process: ProcessNow, device: DeviceNow, history: History | None = None
) -> tuple[str, ...]:
    """The cells of a process's row, in GiB where no unit stands."""
    held = held_on(process.inside, device.uuid)
    live = reserved = nccl = grows = None
    if held is not None:
        live, reserved, nccl, grows = (
            held.allocated_bytes,
            held.reserved_bytes,
            held.nccl_bytes,
            held.growth_bytes,
        )
    cached = None if live is None or reserved is None else max(0, reserved - live)
    step = process.inside.step if process.inside is not None and process.inside.step else None
    change = None if history is None else history.per_minute("process", process.pid, device.name)
    return (
        f"{process.pid}{'*' if process.is_inferred else ''}",
        printable(process.user or NOTHING),
        device.name,
        _gib(process.used_bytes),
        _gib(live),
        _gib(cached),
        _gib(nccl),
        _gib(process.rss_bytes),
        NOTHING if step is None else f"{step:,}",
        NOTHING if grows is None else f"+{format_size(grows)}",
        trend_words(change),
        printable(process.command or "(not to be seen from here)"),
    )


def footnotes(now: MachineNow) -> Iterator[str]:
    """What the marks in the table mean."""
    if any(process.is_inferred for device in now.devices for process in device.processes or ()):
        yield "  * a program under vramlens that the driver does not list by this number: matched by elimination"


def next_lines(now: MachineNow) -> list[str]:
    """The one next step: for the program that runs out soonest, else for whoever cannot be seen
    inside.
    """
    soonest = _soonest(now)
    if soonest is not None:
        pid = soonest[0].pid
        return [
            "Next, who keeps it:",
            f"  vramlens dump {pid} -o now.vram && vramlens leaks now.vram",
        ]
    if not now.devices:
        return [
            "Next, why: vramlens doctor",
            "Leaks on the CPU: vramlens run --leaks YOUR_SCRIPT.py",
        ]
    processes = [process for device in now.devices for process in device.processes or ()]
    if any(process.inside is not None for process in processes):
        pid = next(process.pid for process in processes if process.inside is not None)
        return [f"Next, one program in detail: vramlens top {pid}"]
    return (
        ["Next, to see what a program holds inside PyTorch:", "  vramlens run train.py"]
        if processes
        else []
    )


def host_line(now: MachineNow) -> str:
    """The host's memory."""
    host, parts = now.host, []
    if host.total_bytes is not None and host.available_bytes is not None:
        whose = " of this container" if host.limit == "cgroup" else ""
        used = host.total_bytes - host.available_bytes
        parts.append(f"{format_size(used)} of {format_size(host.total_bytes)}{whose} used")
    pinned = {
        (process.inside.pid, process.inside.started): process.inside.pinned_bytes or 0
        for device in now.devices
        for process in device.processes or ()
        if process.inside is not None
    }
    if any(pinned.values()):
        parts.append(f"{format_size(sum(pinned.values()))} pinned by PyTorch")
    driver = f"; driver {now.driver_version}" if now.driver_version else ""
    return f"Host: {', '.join(parts) or 'not known'}{driver}"


def kind_lines(device: DeviceNow) -> list[str]:
    """Where a GPU's memory is: a line a kind that has any."""
    kinds = {kind: size for kind, size in device.kinds().items() if size}
    width = max((len(format_size(size)) for size in kinds.values()), default=0)
    return [f"  {format_size(size):>{width}}  {KINDS[kind]}" for kind, size in kinds.items()]


def table(header: tuple[str, ...], rows: list[tuple[str, ...]], width: int) -> list[str]:
    """A table no wider than ``width``: columns with nothing in them are left out, the last is
    cut.
    """
    kept = [
        at
        for at, name in enumerate(header)
        if at == 0 or name == "command" or any(row[at] != NOTHING for row in rows)
    ]
    widths = [max(len(header[at]), *(len(row[at]) for row in rows)) for at in kept]
    for name in _GIVES_WAY:
        pairs = zip(kept, widths, strict=True)
        taken = sum(
            min(size, _NARROWEST_COMMAND) if header[at] == "command" else size for at, size in pairs
        )
        if taken + 2 * (len(kept) - 1) <= width:
            break
        place = next((place for place, at in enumerate(kept) if header[at] == name), None)
        if place is not None:
            del kept[place], widths[place]
    lines = []
    for row in (header, *rows):
        cells = [
            f"{row[at]:<{size}}" if header[at] in _LEFT else f"{row[at]:>{size}}"
            for at, size in zip(kept, widths, strict=True)
        ]
        lines.append(cut("  ".join(cells).rstrip(), width))
    return lines


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
    found = []
    for device in now.devices:
        for process in device.processes or ():
            held = held_on(process.inside, device.uuid)
            if held is not None and held.steps_left is not None:
                found.append((process, device, int(held.steps_left)))
    return min(found, key=lambda one: one[2], default=None)


def _share(device: DeviceNow) -> float:
    return (device.used_bytes or 0) / (device.total_bytes or 1)


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
