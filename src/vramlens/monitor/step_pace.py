"""The pace of steps: how long one takes of late, and the clock time at which steps will be over."""

from __future__ import annotations

import time
from collections import deque

_KEPT = 64
_DAY_S = 86_400
_FARTHEST_S = 366 * _DAY_S


class StepPace:
    """Follows the steps of a program by a clock that only goes forward."""

    def __init__(self) -> None:
        self._ends: deque[tuple[int, float]] = deque(maxlen=_KEPT)

    def add(self, step: int, now_s: float | None = None) -> None:
        """Notes that a step has ended; a number below the last one begins anew."""
        if self._ends and step <= self._ends[-1][0]:
            self._ends.clear()
        self._ends.append((step, time.monotonic() if now_s is None else now_s))

    @property
    def step_us(self) -> int | None:
        """Microseconds a step, the mean of the last 64; None with fewer than two."""
        ends = self._ends
        if len(ends) < 2:
            return None
        (first, began_s), (last, ended_s) = ends[0], ends[-1]
        return round((ended_s - began_s) / (last - first) * 1e6)


def seconds_left(steps_left: float | None, step_us: float | None) -> float | None:
    """How long so many steps take; None where that is not known, or longer than a year."""
    if steps_left is None or not step_us:
        return None
    seconds = steps_left * step_us / 1e6
    return seconds if seconds < _FARTHEST_S else None


def clock_words(seconds: float | None, now_s: float | None = None) -> str:
    """The moment so many seconds from now on this machine's clock: ``, at about 14:32``.

    "" where it is not known; with its day where that is another one.
    """
    if seconds is None:
        return ""
    now = time.time() if now_s is None else now_s
    then = time.localtime(now + seconds)
    is_today = then.tm_yday == time.localtime(now).tm_yday and seconds < _DAY_S
    day = "" if is_today else f"{time.strftime('%b', then)} {then.tm_mday}, "
    return f", at about {day}{time.strftime('%H:%M', then)}"
