"""The last hour of each GPU and process, its trends, and its charts as rows of block characters."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import fmean

from vramlens.monitor.machine.machine import MachineNow

_KEPT_S = 3600
_TREND_S = 60.0
_FEWEST = 5
_PACE_S = 0.25
Point = tuple[float, float]
_BARS = " ▁▂▃▄▅▆▇█"


def _mean(points: Sequence[Point]) -> Point:
    times, figures = zip(*points, strict=True)
    return fmean(times), fmean(figures)


class History:
    """One value a second of each series, for an hour.

    Series: ``("used", device)``, ``("gpu", device)``, ``("process", pid, device)``, ``("host",)``.
    """

    def __init__(self) -> None:
        self._series: dict[tuple[object, ...], deque[Point]] = {}
        self._added, self._second = 0.0, 0

    def add(self, now: MachineNow) -> None:
        """Takes a look into account; of several in a quarter of a second the first, in a second
        the last.
        """
        at = now.time_us / 1e6
        if at < self._added:
            self._series.clear()  # the clock was put back
        elif at - self._added < _PACE_S:
            return
        self._added, self._second = at, int(at)
        host = now.host
        if host.used_bytes is not None:
            self._put(("host",), at, host.used_bytes)
        for device in now.devices:
            self._put(("used", device.name), at, device.used_bytes)
            self._put(("gpu", device.name), at, device.gpu_percent)
        for process, device in now.rows():
            memory = process.memory_on(device)
            size = process.used_bytes
            if size is None and memory is not None:
                size = memory.reserved_bytes
            self._put(("process", process.pid, device.name), at, size)
        ended = [key for key, points in self._series.items() if at - points[-1][0] > _TREND_S]
        for key in ended:
            del self._series[key]

    def _put(self, key: tuple[object, ...], at: float, figure: float | None) -> None:
        if figure is None:
            return
        points = self._series.setdefault(key, deque())
        if points and int(points[-1][0]) == int(at):
            points[-1] = (points[-1][0], figure)
        else:
            points.append((at, figure))
        while at - points[0][0] > _KEPT_S:
            points.popleft()

    def second(self) -> int:
        """The newest second of which anything is known: charts change with it."""
        return self._second

    def points(self, *key: object) -> Sequence[Point]:
        """The points of a series, oldest first: seconds since 1970 and the value."""
        return self._series.get(key, ())

    def per_minute(self, *key: object) -> float | None:
        """The change of a series in the last minute, by minute; None while there are too few
        points.
        """
        points = self._series.get(key)
        if points is None or len(points) < _FEWEST:
            return None
        newest, recent = points[-1][0], []
        for point in reversed(points):
            if newest - point[0] > _TREND_S:
                break
            recent.append(point)
        # The means of the first and the last third: what goes up and down with every step is no
        # trend.
        third = max(1, len(recent) // 3)
        (late, now), (early, before) = _mean(recent[:third]), _mean(recent[-third:])
        if newest - recent[-1][0] < _FEWEST - 1:
            return None
        return (now - before) * 60 / (late - early)


def chart(
    points: Sequence[Point], width: int, height: int, seconds: float, highest: float
) -> list[str]:
    """Rows of bars from top to bottom, the newest at the right; a column shows the highest value of
    its time.

    Args:
        points: seconds and values, oldest first.
        seconds: the time from the left edge to the right.
        highest: the value that fills the whole height.
    """
    cells = [-1.0] * max(0, width)
    if points and width > 0 and highest > 0:
        newest = points[-1][0]
        for at, height_of_cell in reversed(points):
            place = width - 1 - int((newest - at) * width / seconds)
            if place < 0:
                break
            cells[place] = max(cells[place], height_of_cell)
        _fill(cells)
    eighths = [
        0
        if height_of_cell < 0
        else max(1, min(8 * height, round(height_of_cell / highest * 8 * height)))
        for height_of_cell in cells
    ]
    return [
        "".join(_BARS[max(0, min(8, level - 8 * row))] for level in eighths)
        for row in range(height - 1, -1, -1)
    ]


def _fill(cells: list[float]) -> None:
    """Gives columns between two looks the value of the earlier one: there are more columns than
    seconds.
    """
    last = -1.0
    for place, cell in enumerate(cells):
        if cell < 0:
            cells[place] = last
        else:
            last = cell
