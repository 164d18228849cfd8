"""A line that holds more on a rank than is usual."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from vramlens.analyses.finding import Place
from vramlens.ranks.excess.causes import SAME_SHARE, outlives_steps
from vramlens.ranks.hints import Hint
from vramlens.ranks.rank_summary import LineUse, Stray
from vramlens.units import MIB, format_size

_LARGE_PART = 0.3
"""What lines of one file hold of those of several is a fault of its own from this share on."""
_MOST_TOLD = 3
_AS_LARGE, _FAR_MORE = 0.05, 1.25
"""Tensors that are hardly larger on average, and the times as many bytes of them at once: few are
large.
"""
OF_TRAINED = ("gradients", "optimizer_state")
"""Categories of what only a parameter that is trained has."""
_AS_MUCH = 1.1
"""Times what peers make: batches that vary make a little more or less of it."""


@dataclass(frozen=True, slots=True)
class LineExcess:
    """A line that holds more on this rank than is usual.

    Attributes:
        line: it, on this rank.
        usual: the same line on a typical rank; None where most have none.
        bytes: by how much its peak is higher.
        at_peak_bytes: how much more of it is alive at this rank's peak than at a typical rank's.
    """

    line: LineUse
    usual: LineUse | None
    bytes: int
    at_peak_bytes: int

    @property
    def is_alone(self) -> bool:
        """True if this is a recorded line that most peers do not have, and none at which FSDP
        gathers what it lets go in the same step: where it does so hangs on what a rank keeps.
        """
        is_gathered = self.line.hints & Hint.SHARDED and not self.stays
        return self.usual is None and self.line.place is not None and not is_gathered

    @property
    def stays(self) -> bool:
        """True if more of the line was alive at once than a step makes."""
        return self.line.static or outlives_steps(self.line)

    @property
    def place(self) -> object:
        """The line, in words."""
        return self.line.place or "no recorded line"


def bytes_of(excesses: Iterable[LineExcess]) -> int:
    """The bytes by which the peaks of some lines are higher."""
    return sum(excess.bytes for excess in excesses)


def more_at_peak(excesses: Iterable[LineExcess]) -> int:
    """The bytes of some lines at this rank's peak beyond those at a typical rank's."""
    return sum(max(0, excess.at_peak_bytes) for excess in excesses)


def lone_lines(excesses: Iterable[LineExcess]) -> list[LineExcess]:
    """Those of lines that most peers do not have."""
    return [excess for excess in excesses if excess.is_alone]


def faults_of(excesses: Sequence[LineExcess]) -> list[list[LineExcess]]:
    """Some lines by the fault that they are of: all of one, unless lines of several files hold a
    large part each; those with less are of the largest.
    """
    by_file: dict[str, list[LineExcess]] = defaultdict(list)
    for excess in excesses:
        by_file[excess.line.place.file if excess.line.place else ""].append(excess)
    ordered = sorted(by_file.values(), key=more_at_peak, reverse=True)
    least_bytes = _LARGE_PART * more_at_peak(excesses)
    large = [lines for lines in ordered[1:] if more_at_peak(lines) >= least_bytes]
    small = [excess for lines in ordered[1:] if lines not in large for excess in lines]
    return [[*lines, *small] for lines in ordered[:1]] + large


def without_told(
    by_cause: Mapping[str, Sequence[LineExcess]], told: Set[str]
) -> dict[str, list[LineExcess]]:
    """The lines without those of a rank alone whose cause was told; the causes that have some."""
    return _without(by_cause, lambda cause, excess: cause in told and excess.is_alone)


def _without(
    by_cause: Mapping[str, Sequence[LineExcess]], leaves_out: Callable[[str, LineExcess], bool]
) -> dict[str, list[LineExcess]]:
    """The lines without some; the causes that have others."""
    remaining = {
        cause: [excess for excess in excesses if not leaves_out(cause, excess)]
        for cause, excesses in by_cause.items()
    }
    return {cause: excesses for cause, excesses in remaining.items() if excesses}


def is_of_training(excess: LineExcess) -> bool:
    """True if a line may hold more at the peak because more parameters are trained: their gradients
    and states, and what other lines make more often or keep for longer. What is as many tensors,
    each of them larger, is something else; so is what was built before the first step.
    """
    line, usual = excess.line, excess.usual
    if excess.at_peak_bytes <= 0:
        return False
    if line.category in OF_TRAINED:
        return True
    if usual is None or line.static:
        return False
    is_known = min(line.per_step, usual.per_step) > 0  # a rank that died has fewer in all
    made, usually = (
        (line.per_step, usual.per_step) if is_known else (line.allocations, usual.allocations)
    )
    is_as_often = abs(made - usually) <= SAME_SHARE * usually
    return not (is_as_often and line.mean_bytes > (1 + SAME_SHARE) * usual.mean_bytes)


def without_training(
    by_cause: Mapping[str, Sequence[LineExcess]],
) -> dict[str, list[LineExcess]]:
    """The lines without those that may hold more because more is trained; the causes that have
    some.
    """
    return _without(by_cause, lambda _, excess: is_of_training(excess))


def growth_of(excesses: Sequence[LineExcess]) -> float:
    """The share by which some lines hold more than is usual."""
    usual_bytes = sum(excess.usual.peak_bytes for excess in excesses if excess.usual is not None)
    return bytes_of(excesses) / max(1, usual_bytes)


def is_kept_for_longer(excess: LineExcess, more_bytes: int) -> bool:
    """True if a rank makes no more at a line than its peers do, and holds most of what it holds
    more there at once: no batch does that.
    """
    line, usual = excess.line, excess.usual
    if usual is None or line.allocations != usual.allocations:
        return False
    is_as_much = line.total_bytes <= _AS_MUCH * usual.total_bytes
    return is_as_much and 2 * excess.bytes >= more_bytes


def place_to_blame(excesses: Iterable[LineExcess], excess_bytes: int) -> Place | None:
    """The first recorded line, where it holds half of the bytes; else they are many lines'."""
    for excess in excesses:
        if excess.line.place is not None:
            holds_half = 2 * excess.at_peak_bytes >= excess_bytes
            return excess.line.place if holds_half else None
    return None


def way_of_differing(excess: LineExcess) -> str:
    """The difference between a line and the usual one, in words."""
    line, usual = excess.line, excess.usual
    if usual is None or not usual.peak_bytes:
        return "no peer has it"
    if abs(line.allocations - usual.allocations) > SAME_SHARE * usual.allocations:
        own_size, usual_size = format_size(int(line.mean_bytes)), format_size(int(usual.mean_bytes))
        return (
            f"{line.allocations:,} allocations of {own_size} on average; its peers:"
            f" {usual.allocations:,} of {usual_size}"
        )
    if abs(line.mean_bytes - usual.mean_bytes) > SAME_SHARE * usual.mean_bytes:
        ratio = line.times_as_large(usual)
        at_once = line.peak_bytes / usual.peak_bytes
        if abs(ratio - 1) <= _AS_LARGE and at_once >= _FAR_MORE:
            return f"the same number of allocations; up to {at_once:.2f}x as much in use at once"
        return f"the same number of allocations, {ratio:.2f}x the size"
    return "the same number and size, but more of them in use at once"


def words_of_lines(ranked: Sequence[LineExcess]) -> list[str]:
    """How much more the first of some lines hold, and in which way; one phrase a line."""
    return [
        f"+{format_size(max(excess.bytes, excess.at_peak_bytes))} at {excess.place}"
        f" ({way_of_differing(excess)})"
        for excess in ranked[:_MOST_TOLD]
    ]


def echoes_stray(excesses: Sequence[LineExcess], strays: Iterable[Stray]) -> bool:
    """True if this is what a peer put on this rank's device, seen from the one whose device it
    is.
    """
    more = bytes_of(excesses)
    places = {excess.line.place for excess in excesses}
    return any(
        abs(more - stray.reserved_bytes) <= 2 * MIB + stray.reserved_bytes // 100
        for stray in strays
        if stray.place in places
    )
