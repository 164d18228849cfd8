"""Rhythm: in which steps something was left behind, and whether that still goes on.

The gates against false alarms that need no more than the steps: what was made once, what stopped
growing, what each step replaces, what is given back now and then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EVERY, PERIODIC, IRREGULAR = "every step", "every few steps", "now and then"
_LIVED_LONGER = 1.5
"""How many times the longest life that was seen to end is no longer that kind of life."""
_COVERED = 0.9
_STEADY = 0.7
"""The later half must leave behind at least so much of what the earlier half did."""
_EVEN = 1.5
_MANY = 20


@dataclass(frozen=True, slots=True)
class Rhythm:
    """When something is left behind, as far as it goes on to the end.

    Attributes:
        kind: EVERY, PERIODIC or IRREGULAR.
        first: the step that it begins with.
        steps: how many steps left something behind.
        outlived: how many of them left what is older than anything of its kind that was given back.
        steady: whether the later half is as busy as the earlier one.
        apart: how many steps lie between two that left something, usually.
    """

    kind: str
    first: int
    steps: int
    outlived: int
    steady: bool
    apart: int = 1


def rhythm_of(left_by_step: NDArray[np.int64], longest: int) -> Rhythm | str:
    """The rhythm of one cohort, or the reason why it does not grow: "once", "stopped", "slowing" or
    "turnover".

    Args:
        left_by_step: how much was left behind in each step before the one that judges; the latest
            may still be in use.
        longest: how many steps the longest-lived of those given back lived.
    """
    # The latest step may still be using its own, unless its like never lives into the next.
    last = len(left_by_step) + (longest == 0)
    at = np.flatnonzero(left_by_step[: last - 1])
    if len(at) < 2:
        return "once"
    old = len(left_by_step) - at > _LIVED_LONGER * longest
    if longest and int(old.sum()) < 2:
        return "turnover"
    first = _from_where_every(at, last)
    since = last - 2 - int(at[-1])
    if first is not None:
        run = at[at >= first]
        halves = left_by_step[first : last - 1]
        middle = len(halves) // 2
        steady = halves[middle:].sum() >= _STEADY * halves[:middle].sum() * (
            len(halves) - middle
        ) / max(middle, 1)
        return Rhythm(
            kind=EVERY,
            first=first,
            steps=len(run),
            outlived=int(old[at >= first].sum()),
            steady=bool(steady),
        )
    gaps = np.diff(at)
    usual = float(np.median(gaps))
    if since >= max(2.0, 2 * usual) and since > int(gaps.max()):
        return "stopped"
    even = bool((np.abs(gaps - usual) <= max(1.0, usual * (_EVEN - 1))).mean() >= _COVERED)
    span = last - 1 - int(at[0])
    early = int((at < at[0] + span / 2).sum())
    # Of what comes every few steps, one half of the time may well have one time more.
    steady = len(at) - early + even >= _STEADY * early
    # Of many at random one half may well have some more: twice the spread of a fair coin's.
    steady |= len(at) >= _MANY and 2 * early - len(at) <= 2 * len(at) ** 0.5
    if not steady:
        return "slowing"
    return Rhythm(
        kind=PERIODIC if even else IRREGULAR,
        first=int(at[0]),
        steps=len(at),
        outlived=int(old.sum()),
        steady=steady,
        apart=round(usual),
    )


def _from_where_every(at: NDArray[np.int64], last: int) -> int | None:
    """The earliest step from which on nearly every step, the latest too, left something behind."""
    covered = (len(at) - np.arange(len(at))) / (last - 1 - at)
    enough = np.flatnonzero(covered >= _COVERED)
    # What goes on to the end may miss a step, but not the last two.
    if (
        not len(enough)
        or last - 2 - int(at[-1]) > 1
        or len(at) - int(enough[0]) < max(3, len(at) // 2)
    ):
        return None
    return int(at[enough[0]])
