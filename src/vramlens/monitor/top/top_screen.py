"""The screen of ``vramlens top``, drawn by textual; only lines that changed are drawn again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App
from textual.geometry import Region
from textual.screen import Screen as TextualScreen
from textual.strip import Strip

from vramlens.monitor.machine.machine import DeviceNow, ProcessNow
from vramlens.monitor.top.screen_lines import SORTS, SPANS, Line, View, rows_of, screen_lines
from vramlens.monitor.top.watching import MachineWatch

STYLES = {
    "plain": Style(),
    "title": Style(bold=True),
    "dim": Style(color="bright_black"),
    "good": Style(color="green"),
    "warn": Style(color="yellow"),
    "bad": Style(color="red", bold=True),
    "live": Style(color="cyan"),
    "chart": Style(color="cyan"),
    "chosen": Style(reverse=True),
}
_COLORS = ColorSystem.STANDARD
_SIGNALS = {"I": "SIGINT", "T": "SIGTERM", "K": "SIGKILL"}
_CHARTS = {"c": "compact", "f": "full", "a": "auto"}
_ALL = 1 << 30
_MOVES = {"up": -1, "down": 1, "pageup": -10, "pagedown": 10, "home": -_ALL, "end": _ALL}
"""Keys that choose a process, and by how many rows."""


class Canvas(TextualScreen[None]):
    """All lines of the screen, without any widget on it: those cost more than what they would
    show.
    """

    DEFAULT_CSS = "Canvas { background: ansi_default; overflow: hidden; }"

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[Line] = []
        self._strips: list[Strip] = []
        self._width = 0

    def put(self, lines: list[Line], width: int) -> None:
        """Shows these; those that are as before are not drawn again."""
        before, self._rows = self._rows, lines
        if len(before) != len(lines) or width != self._width:
            self._width, self._strips = width, [_strip(line, width) for line in lines]
            self.refresh()
            return
        changed = [at for at, line in enumerate(lines) if line != before[at]]
        for at in changed:
            self._strips[at] = _strip(lines[at], width)
        if changed and not self._write([(at, lines[at]) for at in changed], width):
            self.refresh()

    def _write(self, changed: list[tuple[int, Line]], width: int) -> bool:
        """Writes changed lines straight to the terminal: textual's own way there takes twice the
        time of all the rest.

        What textual draws later, after a change of size, say, is the same: it asks
        ``render_lines``. False where this version of textual does not let us.
        """
        driver = getattr(self.app, "_driver", None)
        if driver is None or not self.is_current:
            return False
        parts = []
        for at, line in changed:
            parts.append(f"\x1b[{at + 1};1H")
            parts += [STYLES[style].render(text, color_system=_COLORS) for text, style in line]
            room = width - sum(len(text) for text, _ in line)
            parts.append(" " * room)
        driver.write("".join(parts))
        driver.flush()
        return True

    def render_lines(self, crop: Region) -> list[Strip]:
        """The lines of a region, as textual wants them; there is no border or padding to be
        worked out.
        """
        strips = self._strips[crop.y : crop.bottom]
        strips += [Strip.blank(self._width)] * (crop.height - len(strips))
        if crop.x == 0 and crop.width == self._width:
            return strips
        # While the size changes, textual may ask for another width than the lines were made for.
        return [strip.crop(crop.x, crop.right).adjust_cell_length(crop.width) for strip in strips]


def _strip(line: Line, width: int) -> Strip:
    # Every character here is one cell wide: the lines are made so.
    used = sum(len(text) for text, _ in line)
    segments = [Segment(text, STYLES[style]) for text, style in line]
    if used > width:
        return Strip(segments).crop(0, width)
    return Strip([*segments, Segment(" " * (width - used))], width)


class Screen(App[None]):
    """The application."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = []
    TITLE = "vramlens top"

    def __init__(self, watching: MachineWatch, interval_s: float) -> None:
        super().__init__(ansi_color=True)
        self._watching, self._interval_s = watching, interval_s
        self._canvas, self.view = Canvas(), View()
        self._signal = ""
        self.animation_level = "none"

    def get_default_screen(self) -> Canvas:
        """The canvas."""
        return self._canvas

    def on_mount(self) -> None:
        """Begins to look."""
        self.draw()
        self.set_interval(self._interval_s, self.look)

    def on_resize(self, _event: events.Resize) -> None:
        """Draws anew in another size."""
        self.call_after_refresh(self.draw)

    def look(self) -> None:
        """Looks at the machine and draws what changed."""
        self._watching.look()
        if self._watching.ended:
            self.exit()
        alerts = self._watching.alerts
        if alerts and not self.view.question:
            self.view.message = f"alert: {alerts[-1].text}"
        self.draw()

    def draw(self) -> None:
        """Draws what is known."""
        size = self._canvas.size
        now = self._watching.now
        if now is not None and size.height > 1:
            lines = screen_lines(now, self._watching.history, self.view, size.width, size.height)
            self._canvas.put(lines, size.width)

    def on_key(self, event: events.Key) -> None:
        """The keys, as in nvitop."""
        event.stop()
        key = event.character if event.character and event.character.isprintable() else event.key
        if self.view.question:
            self._answer(key)
        elif key in ("q", "ctrl+c"):
            self.exit()
        else:
            self._press(key)
        self.draw()

    def _press(self, key: str) -> None:
        """Does what a key stands for; other keys do nothing."""
        view = self.view
        if key in _MOVES:
            self._choose(key)
        elif key in _CHARTS:
            view.charts = _CHARTS[key]
        elif key in _SIGNALS:
            self._ask_to_signal(_SIGNALS[key])
        elif key in ("r", "f5"):
            self.look()
        elif key in _CHANGES:
            _CHANGES[key](view)

    def _ask_to_signal(self, name: str) -> None:
        view = self.view
        if view.chosen is not None:
            self._signal = name
            view.question = f"Send {name} to process {view.chosen[0]}? y: yes, any other key: no"

    def _rows(self) -> list[tuple[ProcessNow, DeviceNow]]:
        now = self._watching.now
        return [] if now is None else rows_of(now, self.view)

    def _choose(self, key: str) -> None:
        rows = [(process.pid, device.name) for process, device in self._rows()]
        if not rows:
            return
        if self.view.chosen in rows:
            row = rows.index(self.view.chosen) + _MOVES[key]
        else:
            row = len(rows) - 1 if key == "end" else 0
        self.view.chosen = rows[max(0, min(len(rows) - 1, row))]

    def _answer(self, key: str) -> None:
        """Sends the signal that was asked about, if the answer is yes."""
        view, self.view.question = self.view, ""
        if key != "y" or view.chosen is None:
            return
        pid = view.chosen[0]
        processes = {(process.pid, device.name): process for process, device in self._rows()}
        process = processes.get(view.chosen)
        if process is None or process.command is None or process.is_inferred:
            view.message = f"Process {pid} is not visible from here: nothing was sent."
            return
        try:
            os.kill(pid, getattr(signal, self._signal))
            view.message = f"Sent {self._signal} to process {pid}."
        except OSError as error:
            view.message = f"Process {pid}: {error.strerror}. Nothing was sent."


def _toggle_help(view: View) -> None:
    view.help = not view.help


def _go_back(view: View) -> None:
    if not (view.help or view.detail):
        view.chosen = None
    view.help = view.detail = False
    view.message = ""


def _toggle_detail(view: View) -> None:
    view.detail = not view.detail and view.chosen is not None


def _turn(view: View) -> None:
    view.turned = not view.turned


def _shift(view: View, cells: int) -> None:
    view.shift = max(0, view.shift + cells)


def _sort(view: View, columns: int) -> None:
    view.sort = (view.sort + columns) % len(SORTS)


def _change_span(view: View, steps: int) -> None:
    view.span = max(0, min(len(SPANS) - 1, view.span + steps))


_CHANGES: dict[str, Callable[[View], None]] = {
    "?": _toggle_help,
    "h": _toggle_help,
    "escape": _go_back,
    "enter": _toggle_detail,
    "/": _turn,
    "left": partial(_shift, cells=-8),
    "right": partial(_shift, cells=8),
    ",": partial(_sort, columns=-1),
    ".": partial(_sort, columns=1),
    "[": partial(_change_span, steps=-1),
    "]": partial(_change_span, steps=1),
}
"""Keys that change what is shown."""
