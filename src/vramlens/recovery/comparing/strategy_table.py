"""The table of strategies: as a page of text, as a figure, and as something to apply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.ground.wrapped_lines import WIDTH, wrapped_lines
from vramlens.recovery.comparing.strategy_figure import figure_svg
from vramlens.recovery.comparing.strategy_row import StrategyRow
from vramlens.schema import SCHEMA
from vramlens.units import agreeing, counted, format_size
from vramlens.whole_file import whole_file

_HEADING = ("strategy", "allocated", "reserved", "step", "loss", "gradient", "effort")
_TO_THE_LEFT = ("strategy", "effort")
_LEFT_OUT_FIRST = ("gradient", "loss")
"""Columns that a narrow terminal has no room for; ``--json`` has them."""
_UNKNOWN = "-"
_NEARLY = 1.02
"""Of the fastest time: one that keeps the numbers is taken up to there."""
_ON_CPU = (
    "these numbers say little about a GPU: bytes come from a simulated device, times from the CPU"
)
_IS_PREDICTED = "no GPU was used: bytes are predicted (vramlens.predict) and there are no times"
PREDICTED = "predicted"
"""The device of a table that no GPU was used for."""
_MOST_TOGETHER = 3
_OF_ACTIVATIONS = ("checkpoint", "checkpoint_half", "offload")
"""Of these only one at a time: what is offloaded cannot be checked by what recomputes it."""
_RERUN = "run this on the GPU where the model trains before you choose"


@dataclass(frozen=True, slots=True)
class StrategyTable:
    """All strategies; printed it is one page. ``table["bf16"]`` is a row, ``table.best`` the
    fastest that fits.

    Attributes:
        budget_bytes: what was to be kept within, or None.
        batch: samples in a batch, None where a script ran as it is; ``device``: where it ran.
        script: that script and its arguments, as a shell takes them.
    """

    rows: tuple[StrategyRow, ...]
    budget_bytes: int | None
    batch: int | None
    device: str
    repeats: int
    steps: int
    script: str = ""

    def __getitem__(self, name: str) -> StrategyRow:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def fits(self, row: StrategyRow) -> bool:
        """Whether it stays within the budget, by the most that the allocator may reserve."""
        most_bytes = row.high_reserved_bytes or row.peak_reserved_bytes
        return most_bytes is not None and (
            self.budget_bytes is None or most_bytes <= self.budget_bytes
        )

    def is_over(self, row: StrategyRow) -> bool:
        """Whether it needs more than the budget, by the least that the allocator may reserve."""
        least_bytes = row.low_reserved_bytes or row.peak_reserved_bytes or 0
        if self.budget_bytes is None or least_bytes <= self.budget_bytes:
            return False
        return format_size(least_bytes) != format_size(self.budget_bytes)

    @property
    def best(self) -> StrategyRow | None:
        """The fastest that fits; one that keeps the numbers is taken where it is within 2% of the
        fastest.

        The default stays where it fits and nothing is faster by more than the noise (the spread
        between processes, and 2%). Where there are no times, it is the default if that fits the
        budget, else the least effort that does; without a budget what reserves least.
        """
        fitting = [row for row in self.rows if self.fits(row) and row.outcome == "done"]
        if not fitting:
            return None
        default = next((row for row in fitting if row.name == "default"), None)
        if self.has_no_times and self.budget_bytes is None:
            return min(fitting, key=_reserved)
        if self.has_no_times:
            return default or min(fitting, key=_effort)
        return _nearly_fastest(fitting, default)

    @property
    def on_cpu(self) -> bool:
        """Whether it ran where times and bytes say little about the GPU that the model will
        train on.
        """
        return self.device.partition(":")[0] == "cpu"

    @property
    def has_no_times(self) -> bool:
        """Whether times decide nothing: it ran on the CPU, or not at all."""
        return self.on_cpu or self.device == PREDICTED

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The answer as a claim with its evidence."""
        best = self.best
        if best is None:
            return (
                Finding(
                    "strategies_none_fits",
                    Verdict.PROVEN,
                    self._headline(),
                    fix="a smaller batch, or plan()",
                ),
            )
        verdict, evidence, fix = Verdict.PROVEN, "", best.edit
        if self.has_no_times:
            verdict, evidence, fix = Verdict.POSSIBLE, self._caution(), _RERUN
        elif not best.same_numbers:
            evidence = "results change within the rounding of the dtype: check your metric"
        return (
            Finding(
                "strategies_best",
                verdict,
                self._headline(),
                bytes=best.peak_reserved_bytes,
                evidence=tuple(filter(None, [evidence])),
                fix=fix,
            ),
        )

    def to_json(self) -> dict[str, Any]:
        """The table as ``vramlens strategies --json`` prints it."""
        best = self.best
        return {
            "schema": SCHEMA,
            "device": self.device,
            "batch": self.batch,
            "budget_bytes": self.budget_bytes,
            "best": None if best is None else best.name,
            "strategies": [{**asdict(row), "fits": self.fits(row)} for row in self.rows],
        }

    def figure(self, path: str) -> None:
        """Writes the figure, an SVG: peak by step time, the front marked."""
        with whole_file(path) as file:
            file.write(figure_svg(self.rows, self.budget_bytes).encode())

    def __str__(self) -> str:
        lines = wrapped_lines(self._headline())
        is_any_done = any(row.outcome == "done" for row in self.rows)
        if is_any_done and self.has_no_times:
            lines += wrapped_lines(f"  {self._caution()}")
        if is_any_done:
            lines += [*self._grid(), *self._edits()]
        lines += self._without_effect()
        for (outcome, why), names in self._not_done().items():
            lines += wrapped_lines(f"    {', '.join(names)}: {outcome}: {why}")
        if is_any_done:
            lines += wrapped_lines(f"  {self._legend()}")
        next_step, *command = self._next().splitlines()  # a command to paste stays one line
        return "\n".join([*lines, *wrapped_lines(next_step), *command])

    def _without_effect(self) -> list[str]:
        """Those that ask for the same as the default, and why that may be."""
        if self.device != PREDICTED:
            return []
        rows = [row for row in self.rows if row.outcome == "done" and self._is_as_default(row)]
        if not rows:
            return []
        names = ", ".join(row.name for row in rows)
        verb = agreeing(len(rows), "needs", "need")
        return wrapped_lines(
            f"    {names}: {verb} the same as the default: already in use, or without effect at"
            " the peak"
        )

    def _is_as_default(self, row: StrategyRow) -> bool:
        """Whether a row reads as that of the default, to the last digit."""
        default = self["default"]
        return row is not default and self._cells(row)[1:3] == self._cells(default)[1:3]

    def _not_done(self) -> dict[tuple[str, str], list[str]]:
        """The strategies that did not run to their end, by how and why."""
        names: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row.outcome != "done":
                names.setdefault((row.outcome, row.why), []).append(row.name)
        if len(names) == 1 and len(self.rows) > 1 and len(*names.values()) == len(self.rows):
            return {reason: ["all of them"] for reason in names}
        return names

    def __repr__(self) -> str:
        return str(self)

    def _caution(self) -> str:
        return _ON_CPU if self.on_cpu else _IS_PREDICTED

    def _grid(self) -> list[str]:
        """The lines of those that ran, with a heading, in columns."""
        order = _reserved if self.device == PREDICTED else _time
        done = sorted((row for row in self.rows if row.outcome == "done"), key=order)
        columns = list(zip(*[_HEADING, *map(self._cells, done)], strict=True))
        padded = [_padded(column) for column in _telling(columns)]
        return [f"  {'  '.join(line).rstrip()}" for line in zip(*padded, strict=True)]

    def _edits(self) -> list[str]:
        """What to write for each that ran, a line for each."""
        lines: list[str] = []
        for row in self.rows:
            is_single = row.name != "default" and "+" not in row.name
            if is_single and row.outcome == "done":
                lines += wrapped_lines(f"    {row.name}: {row.edit}")
        return lines

    def _cells(self, row: StrategyRow) -> tuple[str, ...]:
        mark = ("*" if row.front else " ") + self._mark(row)
        return (
            f"{mark} {row.name}",
            format_size(row.peak_allocated_bytes or 0),
            format_size(row.peak_reserved_bytes or 0),
            _UNKNOWN if row.step_ms is None else f"{row.step_ms:.1f} ms",
            _drift(row.loss_drift),
            _drift(row.gradient_drift),
            "" if row.name == "default" else "+" * row.difficulty,
        )

    def _mark(self, row: StrategyRow) -> str:
        if self.fits(row):
            return ""
        return "!" if self.is_over(row) else "?"

    def _legend(self) -> str:
        size = format_size(self.budget_bytes) if self.budget_bytes else ""
        budget = f"; ! is over {size}, ? may be" if size else ""
        how = (
            f"* no other is both smaller and faster{budget}. {self._data} on {self.device}; medians"
            f" of {counted(self.steps, 'step')} in {counted(self.repeats, 'process', 'processes')}"
            " each; loss and gradient: difference from the default"
        )
        if self.device == PREDICTED:
            how = f"{self._data}{budget}"
        return (
            f"{how}; allocated and reserved: at their peaks (a card has to hold what is reserved);"
            " + one line to change, ++ a few, +++ another training loop"
        )

    @property
    def _data(self) -> str:
        """What each strategy ran on, in words."""
        if self.batch is None:
            return f"The script as it is, {counted(self.steps, 'step')}"
        return f"Batch of {self.batch:,}"

    def _next(self) -> str:
        best = self.best
        if self._has_only_failures:
            return "Next: make the default work, then compare again"
        if best is None:
            return self._next_where_nothing_fits()
        if self.has_no_times:
            return f"Next: {_RERUN}"
        if best.name == "default":
            return "Next: nothing to change; the default fits, and nothing is clearly faster"
        return f"Next: {best.edit}"

    def _next_where_nothing_fits(self) -> str:
        """What could fit: those that save most, together; else a smaller batch."""
        if not self.script:
            return "Next: a smaller batch, or vramlens.plan()"
        together = self._untried_together()
        if not together:
            return "Next: a smaller batch, or smaller inputs"
        size = format_size(self.budget_bytes).replace(" ", "") if self.budget_bytes else ""
        options = f"{f' --budget {size}' if size else ''} --names {together}"
        return (
            "Next: a smaller batch, or those that save most, together:\n"
            f"  vramlens strategies{options} {self.script}"
        )

    def _untried_together(self) -> str:
        """The names of the few that save most, joined; "" where fewer than two save, or that ran."""
        default_bytes = _reserved(self["default"])
        smaller = sorted(
            (
                row
                for row in self.rows
                if row.outcome == "done" and "+" not in row.name and _reserved(row) < default_bytes
            ),
            key=_reserved,
        )
        by_kind: dict[str, str] = {}
        for row in smaller:
            kind = "activations" if row.name in _OF_ACTIVATIONS else row.name
            by_kind.setdefault(kind, row.name)
        names = list(by_kind.values())[:_MOST_TOGETHER]
        tried = {frozenset(row.name.split("+")) for row in self.rows}
        return "+".join(names) if len(names) > 1 and frozenset(names) not in tried else ""

    def _headline(self) -> str:
        best, default = self.best, self["default"]
        within = f" within {format_size(self.budget_bytes)}" if self.budget_bytes else ""
        if best is None:
            return self._nothing_fits(within)
        if self.has_no_times:
            how = "Tried on the CPU" if self.on_cpu else "Predicted without a GPU"
            choice = self._fitting_choice(best, within) if within else self._least_choice(best)
            return f"{how}: {choice}. Speeds were not compared."
        text = f"Fastest{within}: {best.name}, {best.step_ms:.1f} ms per step at a peak of" + (
            f" {format_size(best.peak_allocated_bytes or 0)}"
        )
        if default.step_ms is not None and best is not default:
            text += f" (default: {default.step_ms:.1f} ms, {format_size(default.peak_allocated_bytes or 0)})"
        return f"{text}."

    def _fitting_choice(self, best: StrategyRow, within: str) -> str:
        """Which strategy fits the budget, in words."""
        is_default = best.name == "default"
        fits = "the default fits" if is_default else f"{best.name} is the smallest change that fits"
        return f"{fits}{within}: {format_size(_reserved(best))} reserved at the peak"

    def _least_choice(self, best: StrategyRow) -> str:
        """Which strategy reserves least and what it saves, in words."""
        size = format_size(_reserved(best))
        if best.name == "default":
            return f"nothing reserves less than the default, {size} at the peak"
        before = self["default"].peak_reserved_bytes
        if before is None:
            return f"{best.name} reserves least, {size} at the peak"
        saved = format_size(before - _reserved(best))
        return f"{best.name} saves most: {size} reserved at the peak instead of" + (
            f" {format_size(before)} ({saved} less)"
        )

    def _nothing_fits(self, within: str) -> str:
        if self._has_only_failures:
            return "Nothing to compare: every strategy failed, the default as well."
        fits = f"fits{within}" if within else "ran to its end"
        return f"Nothing that was tried {fits}."

    @property
    def _has_only_failures(self) -> bool:
        return all(row.outcome == "failed" for row in self.rows)


def _effort(row: StrategyRow) -> tuple[bool, int, int]:
    """By what strategies are ordered where times say nothing."""
    return not row.same_numbers, row.difficulty, _peak(row)


def _telling(columns: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The columns that say something, as many as a narrow terminal has room for."""
    telling = [column for column in columns if set(column[1:]) != {_UNKNOWN}]
    for name in _LEFT_OUT_FIRST:
        if _width(telling) > WIDTH:
            telling = [column for column in telling if column[0] != name]
    return telling


def _width(columns: Sequence[Sequence[str]]) -> int:
    """What the columns take, with two spaces before each."""
    return sum(2 + max(map(len, column)) for column in columns)


def _padded(column: Sequence[str]) -> list[str]:
    width = max(map(len, column))
    is_left = column[0] in _TO_THE_LEFT
    return [cell.ljust(width) if is_left else cell.rjust(width) for cell in column]


def _clearly_faster(row: StrategyRow, default: StrategyRow) -> bool:
    noise = max(row.step_spread_ms or 0.0, default.step_spread_ms or 0.0, 0.02 * _time(default))
    return _time(row) < _time(default) - noise


def _nearly_fastest(fitting: list[StrategyRow], default: StrategyRow | None) -> StrategyRow:
    if default is not None:
        fitting = [default, *(row for row in fitting if _clearly_faster(row, default))]
    fastest = min(fitting, key=_time)
    exact = [row for row in fitting if row.same_numbers and _time(row) <= _NEARLY * _time(fastest)]
    return min(exact or [fastest], key=_time)


def _peak(row: StrategyRow) -> int:
    return row.peak_allocated_bytes or 0


def _reserved(row: StrategyRow) -> int:
    return row.peak_reserved_bytes or 0


def _time(row: StrategyRow) -> float:
    return row.step_ms if row.step_ms is not None else float("inf")


def _drift(value: float | None) -> str:
    if value is None:
        return "-"
    return "same" if value == 0 else f"{value:.0e}"
