"""The last hour of each GPU and process, for charts and trends."""

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
