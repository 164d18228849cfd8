"""Rules for alerts: ``used > 92%``, ``growth > 5MiB/step``, ``free < 2GiB for 30s``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vramlens.errors import UsageError
from vramlens.units import format_size, parse_size

_RULE = re.compile(
    r"\s*([a-z_]+)\s*(>=|<=|>|<)\s*([0-9][0-9.]*)\s*((?!for\s)[^\s0-9].*?)?"
    r"(?:\s+for\s+([0-9]+(?:\.[0-9]+)?)\s*(s|min|h))?\s*",
    re.ASCII | re.IGNORECASE,
)
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
SIZES = {
    "used": "used on the GPU, by everybody",
    "free": "free on the GPU",
    "allocated": "in use by PyTorch",
    "reserved": "reserved by PyTorch",
    "cached": "cached by PyTorch",
    "host": "used on the host, by everybody",
    "rss": "this process's memory on the host",
    "pinned": "page-locked by PyTorch",
}
LABELS = {
    "host": "used",
    "rss": "this process",
    "allocated": "in use by PyTorch",
    "steps_left": "steps left",
    "gpu": "busy",
    "reserved": "reserved by PyTorch",
    "cached": "cached by PyTorch",
    "retries": "retries of PyTorch",
    "failures": "failed requests",
}
"""What a metric is called in a sentence, where not by its own name."""
PARTS_OF = {
    "used": "GPU",
    "free": "GPU",
    "allocated": "GPU",
    "reserved": "GPU",
    "cached": "GPU",
    "host": "host",
}
"""What a percentage of each is a percentage of."""
NUMBERS = {
    "growth": ("step", "left behind by each step"),
    "steps_left": ("steps", "steps until memory runs out"),
    "gpu": ("%", "of the time a kernel runs"),
    "temperature": ("C", "of the GPU"),
    "power": ("W", "drawn by the GPU"),
    "retries": ("", "times that PyTorch emptied its cache to continue"),
    "failures": ("", "requests that failed"),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One threshold.

    Attributes:
        text: as it was written.
        metric: a key of ``SIZES`` or ``NUMBERS``.
        is_above: whether more than the limit is the alarm, else less.
        limit: in bytes, percent, steps, degrees, watts or times.
        is_share: whether the limit is in percent of the whole memory.
        or_equal: whether the limit itself is an alarm.
        for_s: how long it must hold, in seconds.
    """

    text: str
    metric: str
    is_above: bool
    limit: float
    is_share: bool
    or_equal: bool
    for_s: float = 0.0

    def is_over(self, value: float) -> bool:
        """True if a value is an alarm."""
        if value == self.limit:
            return self.or_equal
        return value > self.limit if self.is_above else value < self.limit

    def is_back(self, value: float) -> bool:
        """True if a value is so far back that the alarm is over: by 2 points of a percentage,
        else by a twentieth.
        """
        margin = 2.0 if self.is_share or self.metric == "gpu" else abs(self.limit) / 20
        return value <= self.limit - margin if self.is_above else value >= self.limit + margin

    def words(self, value: float) -> str:
        """A value of this rule's kind, with its unit."""
        if self.is_share:
            return f"{value:.1f}%"
        if self.metric in SIZES:
            return format_size(value)
        if self.metric == "growth":
            return f"{format_size(value)} per step"
        unit = {"gpu": "%", "temperature": " C", "power": " W", "steps_left": " steps"}.get(
            self.metric, ""
        )
        return f"{value:,.0f}{unit}"


_SHORT_NAMES = {
    "live": "allocated",
    "left": "steps_left",
    "temp": "temperature",
    "ooms": "failures",
}


def parse_rule(text: str) -> Rule:
    """The rule that a text means.

    Raises:
        UsageError: it is not a rule; the message says what one looks like.
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not an alert: write 'used > 92%', 'free < 2GiB for 30s' or 'growth > "
            "5MiB/step'"
        )
    metric, sign, number, unit = match[1].lower(), match[2], match[3], (match[4] or "").strip()
    metric = _SHORT_NAMES.get(metric, metric)
    if metric not in SIZES and metric not in NUMBERS:
        raise UsageError(
            f"{text!r}: {match[1]!r} is not available; use one of {', '.join([*SIZES, *NUMBERS])}"
        )
    limit, is_share = _limit(text, metric, number, unit)
    seconds = float(match[5]) * _SECONDS[match[6].lower()] if match[5] else 0.0
    return Rule(
        text=text.strip(),
        metric=metric,
        is_above=sign[0] == ">",
        limit=limit,
        is_share=is_share,
        or_equal=sign.endswith("="),
        for_s=seconds,
    )


def _limit(text: str, metric: str, number: str, unit: str) -> tuple[float, bool]:
    """The limit, and whether it is a percentage."""
    if metric == "growth":
        return _growth_limit(text, number, unit), False
    if metric in SIZES:
        return _size_limit(text, metric, number, unit)
    unit_kind = NUMBERS[metric][0]
    if unit and unit.lower() not in (unit_kind.lower(), f"°{unit_kind.lower()}", f"{metric}s"):
        but = f" but in {unit_kind}" if unit_kind else ""
        raise UsageError(f"{text!r}: {metric} is not measured in {unit!r}{but}")
    return _number(text, number), False


def _growth_limit(text: str, number: str, unit: str) -> float:
    size, slash, per = unit.partition("/")
    if not slash or per.strip().lower() not in ("step", "steps"):
        raise UsageError(f"{text!r}: growth is measured per step: write growth > 5MiB/step")
    return _size(text, number + size)


def _size_limit(text: str, metric: str, number: str, unit: str) -> tuple[float, bool]:
    if not unit:
        share = f"'{metric} > 92%' or " if metric in PARTS_OF else ""
        raise UsageError(f"{text!r}: has no unit: write {share}'{metric} > 20GiB'")
    if unit != "%":
        return _size(text, number + unit), False
    if metric not in PARTS_OF:
        raise UsageError(f"{text!r}: {metric} is a size, not a share: write {metric} > 8GiB")
    return _number(text, number), True


def _size(text: str, size: str) -> float:
    try:
        return float(parse_size(size))
    except UsageError as error:
        raise UsageError(f"{text!r}: {error}") from None


def _number(text: str, number: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise UsageError(f"{text!r}: {number!r} is not a number") from None
