"""The screen of ``vramlens top``: lines of styled parts, made from the machine's state; no
terminal is involved.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vramlens.monitor.machine.inside import InsideDevice
from vramlens.monitor.machine.machine import DeviceNow, MachineNow, ProcessNow
from vramlens.monitor.top.history import History, chart
from vramlens.monitor.top.lines import (
    NOT_INSIDE,
    NOTHING,
    PROCESS_HEADER,
    cut,
    headline,
    host_line,
    kind_lines,
    or_nothing,
    printable,
    process_cells,
    table,
    trend_words,
)
from vramlens.units import GIB, format_size

Line = tuple[tuple[str, str], ...]
"""Parts of text with the name of a style: plain, title, dim, good, warn, bad, live, chart or
chosen.
"""
SORTS = ("used", "live", "per step", "PID", "user", "GPU", "command")
SPANS = ((120.0, "2 min"), (600.0, "10 min"), (3600.0, "1 h"))
KEYS = "q quit  ? keys  arrows choose  enter detail  , . sort  I T K signal"
HELP = (
    ("q", "end"),
    ("up, down, page up, page down, home, end", "choose a process; esc: none"),
    ("left, right", "move along the command"),
    ("enter", "what the chosen process holds; again, or esc: back"),
    (", and .", "sort by the column before or after"),
    ("/", "reverse the order"),
    ("[ and ]", "charts of a shorter or longer time"),
    ("c, f, a", "compact (no charts), full, or automatic"),
    ("I, T, K", "send SIGINT, SIGTERM or SIGKILL to the chosen process (asks first)"),
    ("r, F5", "look now"),
    ("?, h", "this list"),
)
_HIGHEST_CHART = 8
_COLORS_OF_SHARES = ((0.7, "good"), (0.9, "warn"), (float("inf"), "bad"))
_PERSISTENT_ROWS = 7


@dataclass(slots=True)
class View:
    """The choices of whoever watches, and what was drawn last.

    Attributes:
        chosen: the process: its number and its GPU's name.
        question: what is asked before a signal is sent.
    """

    chosen: tuple[int, str] | None = None
    sort: int = 0
    turned: bool = False
    span: int = 0
    charts: str = "auto"
    detail: bool = False
    help: bool = False
    shift: int = 0
    first_row: int = 0
    question: str = ""
    message: str = ""
    charts_of: tuple[object, ...] = ()
    charts_made: list[Line] = field(default_factory=list)
    rows_of: tuple[object, ...] = ()
    rows_made: list[Line] = field(default_factory=list)
    rows_kept: list[ProcessNow] = field(default_factory=list)
    host_of: tuple[object, ...] = ()
    host_made: Line = ()


def rows_of(now: MachineNow, view: View) -> list[tuple[ProcessNow, DeviceNow]]:
    """The processes in the chosen order."""
    return sorted(now.rows(), key=lambda row: _sort_key(row, SORTS[view.sort]), reverse=view.turned)


def screen_lines(
    now: MachineNow, history: History, view: View, width: int, height: int
) -> list[Line]:
    """The whole screen: exactly ``height`` lines, none wider than ``width``."""
    lines = _help_lines(width) if view.help else _screen(now, history, view, width, height - 1)
    lines = [_clipped(line, width) for line in lines[: height - 1]]
    lines += [()] * (height - 1 - len(lines))
    turned = ", turned" if view.turned else ""
    foot = view.question or view.message or f"{KEYS}  by {SORTS[view.sort]}{turned}"
    return [*lines, ((cut(foot, width).ljust(width), "bad" if view.question else "dim"),)]


def _clipped(line: Line, width: int) -> Line:
    parts, room = [], width
    for text, style in line:
        if room > 0:
            parts.append((text[:room], style))
        room -= len(text)
    return line if room >= 0 else tuple(parts)


def _help_lines(width: int) -> list[Line]:
    key_width = max(len(key) for key, _ in HELP)
    lines: list[Line] = [(("Keys", "title"),), ()]
    lines += [
        ((f"  {key:<{key_width}}  ", "title"), (cut(effect, width - key_width - 4), "plain"))
        for key, effect in HELP
    ]
    notes = (
        "Bars: █ in use by PyTorch and ▓ cached by it, in programs under vramlens; ▒ other "
        "use; · free.",
        "Sizes without a unit are in GiB. nccl is counted by PyTorch 2.12 and newer.",
    )
    return [*lines, (), *(((cut(note, width), "dim"),) for note in notes)]


def _screen(now: MachineNow, history: History, view: View, width: int, height: int) -> list[Line]:
    lines: list[Line] = [((cut(headline(now), width), "title"),), ()]
    room = max(3, height - _PERSISTENT_ROWS - 4)
    shown = now.devices[:room]
    lines += [_gpu_line(device, history, width) for device in shown]
    if len(shown) < len(now.devices):
        hidden = len(now.devices) - len(shown)
        lines.append(((f"and {hidden} more GPUs (make the window taller to see them)", "dim"),))
    lines += [
        ((cut(f"  GPU {device.name}: {note}", width), "warn"),)
        for device in shown
        for note in device.notes
    ]
    rows = rows_of(now, view)
    device = _shown_device(now, view)
    if view.detail and view.chosen is not None:
        lines += _detail_lines(rows, view, width)
    spare = height - len(lines) - min(len(rows), max(_PERSISTENT_ROWS, height // 4)) - 4
    if device is not None and view.charts != "compact" and (spare >= 3 or view.charts == "full"):
        tall = max(2, min(_HIGHEST_CHART, spare - 1))
        lines += _chart_lines(device, history, view, width, tall)
    lines.append(())
    host = [_host(now, history, view, width)]
    lines += _process_lines(rows, history, view, width, height - len(lines) - len(host))
    blank: list[Line] = [()] * (height - len(lines) - len(host))
    return [*lines, *blank, *host]


def _gpu_line(device: DeviceNow, history: History, width: int) -> Line:
    used, total = device.used_bytes, device.total_bytes
    if used is None or not total:
        return (
            (f"{device.name:>4}  ", "plain"),
            (cut(device.product or "no numbers", width - 6), "dim"),
        )
    share = used / total
    figures = _gpu_figures(device, history, width)
    product = f" {cut(device.product or '', 22):<22}" if width >= 130 else ""
    name = f"{device.name:>4}{product} "
    cells = max(4, width - len(name) - len(figures))
    color = next(style for limit, style in _COLORS_OF_SHARES if share < limit)
    return (
        (name, "title"),
        *(part for part in _bar(device, cells, color) if part[0]),
        (figures, "bad" if color == "bad" else "plain"),
    )


def _gpu_figures(device: DeviceNow, history: History, width: int) -> str:
    """The figures right of a GPU's bar: more of them where there is room."""
    used, total = device.used_bytes or 0, device.total_bytes or 1
    busy = or_nothing(device.gpu_percent, "{}%")
    text = f" {used / GIB:6.2f} of {total / GIB:.2f} GiB {100 * used / total:3.0f}%  {busy:>5}"
    if width >= 70:
        text += f" {or_nothing(device.temperature_c, '{} C'):>5}"
    if width >= 78:
        text += f" {or_nothing(device.power_w, '{:.0f} W'):>7}"
    if width >= 96:
        text += f" {trend_words(history.per_minute('used', device.name)):>15}"
    return text


def _bar(device: DeviceNow, cells: int, color: str) -> Line:
    """A bar of that many cells: live in PyTorch, cached by it, other use, and free."""
    live = cached = 0
    if any(process.inside is not None for process in device.processes or ()):
        kinds = device.kinds()
        live, cached = kinds.get("pytorch_allocated", 0), kinds.get("pytorch_cached", 0)
    ends = [
        min(cells, round(part / (device.total_bytes or 1) * cells))
        for part in (live, live + cached, device.used_bytes or 0)
    ]
    return (
        ("█" * ends[0] + "▓" * (ends[1] - ends[0]), "live"),
        ("▒" * (ends[2] - ends[1]), color),
        ("·" * (cells - ends[2]), "dim"),
    )


def _chart_lines(
    device: DeviceNow, history: History, view: View, width: int, height: int
) -> list[Line]:
    """Both charts; they are made anew once a second, however often the screen is drawn."""
    key = (device.name, history.second(), view.span, width, height)
    if view.charts_of != key:
        view.charts_of = key
        view.charts_made = _new_chart_lines(device, history, view, width, height)
    return view.charts_made


def _new_chart_lines(
    device: DeviceNow, history: History, view: View, width: int, height: int
) -> list[Line]:
    seconds, name = SPANS[view.span]
    half = (width - 2) // 2
    memory = chart(
        history.points("used", device.name), half, height, seconds, float(device.total_bytes or 0)
    )
    busy = chart(history.points("gpu", device.name), width - 2 - half, height, seconds, 100.0)
    memory_title = cut(f"GPU {device.name} memory, {name}", half).ljust(half)
    busy_title = cut(f"GPU {device.name} busy, {name}", half)
    lines: list[Line] = [((memory_title, "dim"), ("  ", "plain"), (busy_title, "dim"))]
    for memory_row, busy_row in zip(memory, busy, strict=True):
        lines.append(((memory_row, "chart"), ("  ", "plain"), (busy_row, "good")))
    return lines


def _process_lines(
    rows: list[tuple[ProcessNow, DeviceNow]], history: History, view: View, width: int, room: int
) -> list[Line]:
    if not rows:
        return [(("No process uses a GPU.", "dim"),)]
    chosen = (view.chosen, view.sort, view.turned, view.shift)
    key = (*map(id, (process for process, _ in rows)), history.second(), width, room, *chosen)
    if view.rows_of != key:
        lines = _new_process_lines(rows, history, view, width, room)
        # The processes stay as long as what was made of them: their identities are part of the key.
        view.rows_of, view.rows_made, view.rows_kept = key, lines, [process for process, _ in rows]
    return view.rows_made


def _new_process_lines(
    rows: list[tuple[ProcessNow, DeviceNow]], history: History, view: View, width: int, room: int
) -> list[Line]:
    cells = [process_cells(process, device, history) for process, device in rows]
    if view.shift:
        cells = [(*row[:-1], row[-1][view.shift :] or " ") for row in cells]
    header, *texts = table(PROCESS_HEADER, cells, width)
    names = [(process.pid, device.name) for process, device in rows]
    room = max(1, room - 1)
    if view.chosen in names:
        chosen_row = names.index(view.chosen)
        view.first_row = max(min(view.first_row, chosen_row), chosen_row - room + 1)
    view.first_row = max(0, min(view.first_row, len(rows) - room))
    lines: list[Line] = [((header, "dim"),)]
    for at in range(view.first_row, min(len(rows), view.first_row + room)):
        if names[at] == view.chosen:
            lines.append(((texts[at].ljust(width), "chosen"),))
        else:
            lines.append(((texts[at], _style_of(*rows[at])),))
    return lines


def _style_of(process: ProcessNow, device: DeviceNow) -> str:
    memory = process.memory_on(device)
    if memory is None:
        return "dim"
    return "plain" if memory.steps_left is None else "bad"


def _detail_lines(rows: list[tuple[ProcessNow, DeviceNow]], view: View, width: int) -> list[Line]:
    chosen = {(process.pid, device.name): (process, device) for process, device in rows}
    if view.chosen not in chosen:
        return [(), (("The chosen process has ended.", "warn"),)]
    process, device = chosen[view.chosen]
    title = f"Process {process.pid}: {printable(process.command or NOTHING)}"
    lines: list[Line] = [(), ((cut(title, width), "title"),)]
    memory = process.memory_on(device)
    if memory is None or process.inside is None:
        text = "It does not run under vramlens: start it with 'vramlens run' to see inside."
        texts = [f"  {text}", *kind_lines(device)]
        return lines + [((cut(line, width), "dim"),) for line in texts]
    parts = [
        f"live {_size(memory.allocated_bytes)}",
        f"reserved {_size(memory.reserved_bytes)}",
        f"peak {_size(memory.peak_bytes)}",
        f"NCCL {_size(memory.nccl_bytes)}",
        f"pinned on the host {_size(process.inside.pinned_bytes)}",
    ]
    lines.append(((cut("  " + ", ".join(parts), width), "plain"),))
    text = f"  step {process.inside.step:,}: {_growth_words(memory)}"
    lines.append(((cut(text, width), "plain" if memory.steps_left is None else "bad"),))
    return lines


def _growth_words(memory: InsideDevice) -> str:
    growth = "no steady growth"
    if memory.growth_bytes:
        growth = f"+{format_size(memory.growth_bytes)} per step"
    if memory.steps_left is not None:
        growth += f", memory for about {memory.steps_left:,} more"
    return f"{growth}; {memory.retries or 0} retries, {memory.failures or 0} failures"


def _host(now: MachineNow, history: History, view: View, width: int) -> Line:
    key = (history.second(), width)
    if view.host_of != key:
        view.host_of, view.host_made = key, _new_host(now, history, width)
    return view.host_made


def _new_host(now: MachineNow, history: History, width: int) -> Line:
    text, points = host_line(now), history.points("host")
    room = width - len(text) - 2
    if room < 12 or not now.host.total_bytes:
        return ((cut(text, width), "plain"),)
    bars = chart(points, min(40, room), 1, SPANS[0][0], float(now.host.total_bytes))[0]
    return ((f"{text}  ", "plain"), (bars, "chart"))


def _shown_device(now: MachineNow, view: View) -> DeviceNow | None:
    sized = [device for device in now.devices if device.total_bytes]
    chosen_name = None if view.chosen is None else view.chosen[1]
    chosen = [device for device in sized if device.name == chosen_name]
    return max(
        chosen or sized,
        key=lambda device: (device.used_bytes or 0) / (device.total_bytes or 1),
        default=None,
    )


def _sort_key(row: tuple[ProcessNow, DeviceNow], column: str) -> tuple[object, ...]:
    process, device = row
    memory = process.memory_on(device) or NOT_INSIDE
    keys: dict[str, object] = {
        "used": -(process.used_bytes or 0),
        "live": -(memory.allocated_bytes or 0),
        "per step": -(memory.growth_bytes or 0),
        "PID": process.pid,
        "user": process.user or "",
        "GPU": device.name,
        "command": process.command or "",
    }
    return keys[column], process.pid, device.name


def _size(size_bytes: int | None) -> str:
    return NOTHING if size_bytes is None else format_size(size_bytes)
