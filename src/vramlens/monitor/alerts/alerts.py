"""Alerts: when a rule's threshold is passed, once, and again only after the value has clearly
been back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vramlens.monitor.alerts.rules import LABELS, Rule
from vramlens.monitor.machine.inside import InsideDevice
from vramlens.monitor.monitor_samples import DeviceSample
from vramlens.monitor.place_in_job import NOWHERE, PlaceInJob
from vramlens.monitor.step_pace import clock_words, seconds_left
from vramlens.units import counted, format_size

_QUIET_S = 60.0
"""However a value swings, the same alert comes at most so often."""


@dataclass(frozen=True, slots=True)
class Values:
    """The figures to be watched of one thing: a GPU, a program on a GPU, or the host.

    Attributes:
        subject: what it is, as a sentence begins: ``GPU 0``, ``process 4711 on GPU 0``, ``the
            host``.
        figures: by metric, in bytes or the metric's own unit; what is not known is left out.
        whole_bytes: what a percentage is of; None where that is not known.
        place: the machine, job and rank of what it is.
    """

    subject: str
    figures: Mapping[str, float | None]
    whole_bytes: int | None = None
    place: PlaceInJob = NOWHERE


def program_figures(
    memory: DeviceSample | InsideDevice, step_us: float | None
) -> dict[str, float | None]:
    """What rules watch of a program's allocator on one GPU."""
    live, reserved = memory.allocated_bytes, memory.reserved_bytes
    return {
        "allocated": live,
        "reserved": reserved,
        "cached": None if live is None or reserved is None else reserved - live,
        "growth": memory.growth_bytes,
        "steps_left": memory.steps_left,
        "step_us": step_us,
        "retries": memory.retries,
        "failures": memory.failures,
    }


@dataclass(frozen=True, slots=True)
class Alert:
    """One alarm.

    Attributes:
        rule: the rule as it was written.
        subject: what it is about.
        metric, value, limit: what was measured, in bytes, percent or the metric's own unit.
        text: all of it as one sentence.
        steps_left: about how many steps until memory runs out; None where that cannot be told.
        time_us: when, in microseconds since 1970.
        runs_out_us: about when memory runs out, by the same clock; None where that cannot be told.
        host, job, rank: where; None is what nobody told.
    """

    rule: str
    subject: str
    metric: str
    value: float
    limit: float
    text: str
    steps_left: int | None
    time_us: int
    runs_out_us: int | None = None
    host: str | None = None
    job: str | None = None
    rank: int | None = None

    @property
    def sentence(self) -> str:
        """The text for a reader elsewhere: who speaks first."""
        words = PlaceInJob(self.host, self.job, self.rank).words
        return f"{words}: {self.text}" if words else self.text

    def to_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return asdict(self)


@dataclass(slots=True)
class _State:
    since: float | None = None
    is_told: bool = False
    fired_at: float = -1e18
    seen_at: float = 0.0


class Watch:
    """Holds values against rules."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._states: dict[tuple[str, str], _State] = {}

    def look(self, values: Iterable[Values], now_s: float | None = None) -> list[Alert]:
        """The alerts that these values set off.

        Args:
            now_s: the time on a clock that only goes forward; by default now.
        """
        now = time.monotonic() if now_s is None else now_s
        alerts = []
        for measured in values:
            for rule in self.rules:
                figure = _value(rule, measured)
                if figure is not None and self._fires(rule, measured.subject, figure, now):
                    alerts.append(_alert(rule, measured, figure))
        for key in [key for key, state in self._states.items() if now - state.seen_at > 600]:
            del self._states[key]  # its process has ended
        return alerts

    def _fires(self, rule: Rule, subject: str, value: float, now: float) -> bool:
        state = self._states.setdefault((subject, rule.text), _State())
        state.seen_at = now
        if not rule.is_over(value):
            state.since = None
            state.is_told = state.is_told and not rule.is_back(value)
            return False
        if state.since is None:
            state.since = now
        if state.is_told or now - state.since < rule.for_s or now - state.fired_at < _QUIET_S:
            return False
        state.is_told, state.fired_at = True, now
        return True


def _value(rule: Rule, measured: Values) -> float | None:
    figure = measured.figures.get(rule.metric)
    if figure is None or not rule.is_share:
        return figure
    if not measured.whole_bytes:
        return None
    return 100 * figure / measured.whole_bytes


def _alert(rule: Rule, measured: Values, value: float) -> Alert:
    over = "over" if rule.is_above else "under"
    label = LABELS.get(rule.metric, rule.metric)
    text = f"{measured.subject}: {label} {rule.words(value)} is {over} {rule.words(rule.limit)}"
    size, steps_left = measured.figures.get(rule.metric), measured.figures.get("steps_left")
    if rule.is_share and size is not None and measured.whole_bytes is not None:
        text += f" ({format_size(size)} of {format_size(measured.whole_bytes)})"
    if rule.for_s:
        text += f", for {rule.for_s:g} s"
    remaining_s = seconds_left(steps_left, measured.figures.get("step_us"))
    if steps_left is not None:
        steps_words = counted(round(steps_left), "step")
        text += f"; it will run out in about {steps_words}{clock_words(remaining_s)}"
    now_us = time.time_ns() // 1000
    steps = None if steps_left is None else round(steps_left)
    return Alert(
        rule=rule.text,
        subject=measured.subject,
        metric=rule.metric,
        value=value,
        limit=rule.limit,
        text=text,
        steps_left=steps,
        time_us=now_us,
        runs_out_us=None if remaining_s is None else now_us + round(remaining_s * 1e6),
        host=measured.place.host,
        job=measured.place.job,
        rank=measured.place.rank,
    )
