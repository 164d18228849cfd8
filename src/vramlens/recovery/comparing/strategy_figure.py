"""The figure of strategies: an SVG, peak by step time on logarithmic axes, the Pareto front as a
line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.recovery.comparing.strategy_row import StrategyRow

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 150, 40, 50
_Point = tuple[str, float, int, bool]
"""Name, milliseconds of a step, bytes of the peak, and if it is on the front."""
_INK, _GRAY, _BLUE, _RED = "#1f2933", "#9aa5b1", "#1c64c4", "#c0392b"


def figure_svg(rows: Sequence[StrategyRow], budget_bytes: int | None) -> str:
    """The picture's text; strategies that did not run are left out, and said to be in the
    caption.
    """
    points = [
        (row.name, row.step_ms, row.peak_allocated_bytes, row.front)
        for row in rows
        if row.step_ms is not None and row.peak_allocated_bytes
    ]
    left_out = len(rows) - len(points)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        f' font-size="12" fill="{_INK}"><rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 22, "Peak memory and step time (lower left is better)", 15),
    ]
    if points:
        parts += _drawing(points, budget_bytes)
    note = f"{left_out} did not run" if left_out else ""
    parts.append(
        _text(
            _LEFT, _HEIGHT - 8, f"line: nothing else is both smaller and faster. {note}", 11, _GRAY
        )
    )
    return "\n".join([*parts, "</svg>\n"])


@dataclass(frozen=True, slots=True)
class _Axes:
    """Logarithmic axes: the logarithms at which each begins and ends."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def place(self, time_ms: float, size_bytes: float) -> tuple[float, float]:
        x = (math.log(time_ms) - self.x_range[0]) / (self.x_range[1] - self.x_range[0])
        y = (math.log(size_bytes) - self.y_range[0]) / (self.y_range[1] - self.y_range[0])
        return _LEFT + x * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - y * (
            _HEIGHT - _TOP - _BOTTOM
        )

    def grid(self) -> Iterator[str]:
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            time_ms = math.exp(self.x_range[0] + share * (self.x_range[1] - self.x_range[0]))
            size = math.exp(self.y_range[0] + share * (self.y_range[1] - self.y_range[0]))
            x, y = self.place(time_ms, size)
            yield (
                f'<path d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"'
                ' stroke="#e4e7eb"/>'
            )
            yield _text(x, _HEIGHT - _BOTTOM + 16, f"{time_ms:.3g} ms", 11, _GRAY, "middle")
            yield _text(_LEFT - 6, y + 4, format_size(size), 11, _GRAY, "end")


def _range(numbers: Sequence[float]) -> tuple[float, float]:
    return math.log(min(numbers) / 1.15), math.log(max(numbers) * 1.15)


def _drawing(points: list[_Point], budget_bytes: int | None) -> Iterator[str]:
    sizes = [point[2] for point in points] + ([budget_bytes] if budget_bytes else [])
    axes = _Axes(_range([point[1] for point in points]), _range(sizes))
    yield from axes.grid()
    if budget_bytes:
        y = axes.place(points[0][1], budget_bytes)[1]
        yield (
            f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="{_RED}" stroke-dasharray="5 4"/>'
        )
        yield _text(_WIDTH - _RIGHT + 4, y + 4, "budget", 11, _RED)
    front = sorted((point for point in points if point[3]), key=lambda point: point[1])
    if len(front) > 1:
        places = [axes.place(point[1], point[2]) for point in front]
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{corners}" fill="none" stroke="{_BLUE}" stroke-width="1.5"/>'
    yield from _dots(axes, points)


def _dots(axes: _Axes, points: list[_Point]) -> Iterator[str]:
    """A dot a strategy, with its name; names that would lie on another's are moved down."""
    taken: list[tuple[float, float]] = []
    for name, time_ms, size, on_front in points:
        x, y = axes.place(time_ms, size)
        label = y + 4
        while any(abs(label - other) < 12 and abs(x - at) < 110 for at, other in taken):
            label += 12
        taken.append((x, label))
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_BLUE if on_front else _GRAY}"/>'
        yield _text(x + 8, label, name, 12, _INK if on_front else _GRAY)


def _text(
    x: float, y: float, text: str, size: int, color: str = _INK, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}"'
        f' text-anchor="{anchor}">{escape(text)}</text>'
    )
