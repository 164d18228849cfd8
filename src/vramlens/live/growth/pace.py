"""How births are spread over the steps: from early on, to the end, at which rate."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from vramlens.live.growth.looks import Looks

WARM_UP = 1
"""Steps that make optimizer state, gradients and caches: Adam makes its state in the first. With none
each model would leave something behind; with two, runs of six steps could not be judged.
"""
FEWEST, SURE = 3, 4
"""Different steps with births that are needed to speak of growth, and to be sure. Two are also the
last batch and the one before it; with twice as many, no test of ten steps would find anything.
"""
RARE = 4
"""Steps to one that left something: cycles, epochs, rounds of labels. Half of the batches that a training
finds hard are more, and of a replay buffer each step is.
"""
_SHARE_FILLED = 0.8
"""Of the steps, that left something: from there on, the usual step's bytes are the rate (every second
step is 0.5).
"""
ALIKE = 0.02
"""Of the usual size, within which steps left as much: a batch of 32 that lacks one differs by 3%."""
LEAST_OF_A_STEP = 0.01
"""Of the usual step's bytes: the scalar that a graph's latest node made is less, and came alone."""
PAUSE = 1.5
"""Usual distances between births, after which it has stopped. At one, growth would stop before each
burst; at two, a cache that filled in ten epochs would be a leak for two more.
"""
_MANY, _PAUSE_OF_MANY = 16, 1.9
"""Births, from which on the newest may be missing, too: what the program itself still used, and let go
at its end (the handle of the latest hook). With two distances, two would be missing; eight epochs are
also a cache that fills in them.
"""
_FEWEST_FOR_RATE, _RATE_WITHIN = 8, 0.1
"""Births that tell a rate, and how well all births must keep it."""
_MOST_OF_RUN = 0.8
"""Of the steps, that growth must have gone through to be told although it has ended. With three
quarters, tables that are built one by one would be told; with nine tenths, what a run fills before a
longer evaluation would not be.
"""
_BURST_GAP = 3
"""Steps between bursts at least: two are every second step, which is not an epoch; six would leave out
validation after five steps.
"""
_FEWEST_BURSTS = 2
"""More are needed for a rate from the begin of one to the begin of another: two have one distance."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How births are spread over the steps.

    Attributes:
        steps: different steps with births after warm-up, without the one that has just ended.
        is_steady: from early on, to the end, and not slower in the second half.
        is_late: there are births to the end, but none from early on.
        first, last: the first and last of these steps.
        filled: the share of all steps that they are.
        bytes_per_step: bytes that a step adds.
        earliest: the step that the first may be of, where looks were left out before it.
        leaving_steps: how many steps left something that counts, those included that no look was
            made after; None where hardly any step was looked at alone.
        unlooked_steps: of these, those that no look was made after.
        has_just_ended: from early on, through most of the run, and none since.
    """

    steps: int
    is_steady: bool
    is_late: bool
    first: int
    last: int
    filled: float
    bytes_per_step: int
    earliest: int = 0
    leaving_steps: int | None = 0
    unlooked_steps: int = 0
    has_just_ended: bool = False

    @property
    def is_sure(self) -> bool:
        return self.is_steady and self.steps >= SURE


def pace_of(
    bytes_by_step: Mapping[int, int], steps: int, looks: Looks, unseen_bytes: int | None = None
) -> Pace | None:
    """How births are spread; None where too few different steps have any.

    Args:
        bytes_by_step: bytes that were born, by step.
        steps: how many steps have ended; what the last one left may be in use still.
        looks: at births.
        unseen_bytes: beside these, bytes that were born in steps that nobody can tell; None where
            they were not counted.
    """
    are_all_counted = unseen_bytes is not None
    unseen_bytes = unseen_bytes or 0
    end = looks.judged_until(bytes_by_step, steps)
    born = sorted(step for step in bytes_by_step if WARM_UP < step <= end)
    if len(born) < FEWEST:
        return None
    newest_bytes = unseen_bytes + sum(size for step, size in bytes_by_step.items() if step > end)
    if end < steps - 1 and (are_all_counted or looks.blind_step <= end):
        stopped_at = _stopped_at(bytes_by_step, born, newest_bytes, steps)
        if stopped_at is not None:
            end = steps - 1
            bytes_by_step = {**bytes_by_step, stopped_at: newest_bytes}
            born.append(stopped_at)
    window = end - WARM_UP
    gap = median(gaps_of(born))
    goes_to_the_end = end - born[-1] <= _longest_pause(gaps_of(born))
    if not goes_to_the_end and len(born) >= _FEWEST_FOR_RATE:
        goes_to_the_end = _fills_its_rate(bytes_by_step, born, unseen_bytes, end)
    is_from_early = born[0] - WARM_UP - 1 <= max(gap, window / 3)
    middle = (looks.number(WARM_UP + 1) + looks.number(end) + 1) / 2
    first_half = bisect_left(born, middle, key=looks.number)
    unseen = unseen_bytes / max(median(bytes_by_step[step] for step in born), 1)
    goes_on = 2 * (len(born) - first_half) + unseen / 2 >= first_half  # as many are of each half
    is_most_of_run = len(born) >= _MANY and born[-1] - WARM_UP >= _MOST_OF_RUN * window
    filled = len(born) / window
    bytes_by_find = _bytes_by_find({step: bytes_by_step[step] for step in born}, looks)
    leaving_steps = _leaving_steps(bytes_by_find, looks)
    return Pace(
        steps=len(born),
        is_steady=goes_to_the_end and is_from_early and goes_on,
        is_late=goes_to_the_end and not is_from_early,
        first=born[0],
        last=born[-1],
        filled=filled,
        bytes_per_step=round(_rate(bytes_by_find, window)),
        earliest=looks.earliest(born[0]),
        leaving_steps=leaving_steps,
        unlooked_steps=0 if leaving_steps is None else leaving_steps - len(bytes_by_find),
        has_just_ended=not goes_to_the_end and is_from_early and goes_on and is_most_of_run,
    )


def _stopped_at(
    bytes_by_step: Mapping[int, int], born: list[int], newest_bytes: int, steps: int
) -> int | None:
    """The step in which growth stopped after the last that was looked at; None where it may go on.

    Where each step leaves as much, what came since says how many steps have left something.
    """
    sizes = [bytes_by_step[step] for step in born]
    usual = median(sizes)
    gaps = gaps_of(born)
    last = born[-1] + max(round(median(gaps) * newest_bytes / max(usual, 1)), 1)
    has_stopped = _are_mostly_alike(sizes, usual) and steps - 1 - last > _longest_pause(gaps)
    return last if has_stopped else None


def _fills_its_rate(
    bytes_by_step: Mapping[int, int], born: list[int], unseen_bytes: int, end: int
) -> bool:
    """Whether the births that nobody saw are as many as are missing of the usual rate, up to the end: most
    looks of a long run are far apart, and where they happen to fall is no pause.
    """
    sizes = [bytes_by_step[step] for step in born]
    usual = median(sizes)
    if unseen_bytes < sum(sizes) or not _are_mostly_alike(sizes, usual):
        return False
    births = len(born) + unseen_bytes / max(usual, 1)
    share = births * median(gaps_of(born)) / max(end - born[0], 1)
    return abs(share - 1) <= _RATE_WITHIN


def _bytes_by_find(bytes_by_step: Mapping[int, int], looks: Looks) -> dict[int, int]:
    """Bytes by the step in which they were found, without next to nothing.

    An autograd node tells its step, a tensor of no graph only the look that found it: where a look
    found more than any step since the one before, that step and these are one.
    """
    by_look: dict[int, dict[int, int]] = {}
    for step, size in bytes_by_step.items():
        by_look.setdefault(looks.finder(step) or step, {})[step] = size
    by_find: dict[int, int] = {}
    for look, sizes in by_look.items():
        largest_between = max((size for step, size in sizes.items() if step != look), default=0)
        if sizes.get(look, 0) > (1 + ALIKE) * largest_between:
            by_find[look] = sum(sizes.values())
        else:
            by_find.update(sizes)
    least_bytes = LEAST_OF_A_STEP * sum(by_find.values()) / len(by_find)
    return {step: size for step, size in sorted(by_find.items()) if size >= least_bytes}


def _leaving_steps(bytes_by_find: Mapping[int, int], looks: Looks) -> int | None:
    """How many steps left something; None where that cannot be told. One look finds what several
    steps left, as many as it has times the usual bytes of those that were looked at alone.
    """
    spans: dict[int, int] = {}
    before = 0
    for step in bytes_by_find:
        is_look = looks.finder(step) == step
        spans[step] = step - max(before, looks.earliest(step) - 1) if is_look else 1
        before = step
    alone = [size for step, size in bytes_by_find.items() if spans[step] == 1]
    if len(alone) == len(bytes_by_find):
        return len(bytes_by_find)
    usual = median(alone) if len(alone) >= FEWEST else 0
    if not usual:
        return None
    return sum(
        min(spans[step], max(round(size / usual), 1)) for step, size in bytes_by_find.items()
    )


def _longest_pause(gaps: list[int]) -> float:
    """Steps without a birth, after which growth has stopped."""
    repeated_gap = sorted(gaps)[-2]
    between_bursts = repeated_gap if repeated_gap >= _BURST_GAP else 0
    pause = _PAUSE_OF_MANY if len(gaps) >= _MANY else PAUSE
    return pause * max(median(gaps), between_bursts)


def gaps_of(steps: list[int]) -> list[int]:
    """The distances between steps in a row."""
    return [after - before for before, after in pairwise(steps)]


def _rate(bytes_by_find: Mapping[int, int], window: int) -> float:
    born, sums = list(bytes_by_find), list(bytes_by_find.values())
    if len(born) == 1:
        return sums[0] / window
    is_filled = len(born) >= _SHARE_FILLED * window
    return _even_rate(born, sums) if is_filled else _burst_rate(born, sums)


def _even_rate(born: list[int], sums: list[int]) -> float:
    """Bytes a step, where nearly every step adds some."""
    usual = median(sums)
    mean_bytes = sum(sums) / (born[-1] - born[0] + 1)
    if not _are_mostly_alike(sums, usual):
        return mean_bytes
    # Where most agree, what one step seems to have made more is another's, or was made once;
    # and what seems to be missing was not seen, unless it is missing at even distances.
    absent = sorted(set(range(born[0], born[-1])).difference(born))
    is_missing_evenly = len(absent) > 2 and len(set(gaps_of(absent))) == 1
    return min(usual, mean_bytes) if is_missing_evenly else usual


def _are_mostly_alike(sizes: list[int], usual: float) -> bool:
    """Whether most steps left as much as the usual one."""
    return 2 * sum(abs(size - usual) <= ALIKE * usual for size in sizes) > len(sizes)


def _burst_rate(born: list[int], sums: list[int]) -> float:
    """Bytes a step, where only some steps add any.

    Where births were not looked for at each step's end, one look finds those of several: all since
    the look before. What comes in bursts (each epoch's validation) is measured from the begin of
    one to the begin of another.
    """
    gaps = gaps_of(born)
    usual_gap = median(gaps)
    starts = [0, *(place for place, gap in enumerate(gaps, 1) if gap > usual_gap)]
    last = starts[-1] if len(starts) > _FEWEST_BURSTS else len(born) - 1
    return sum(sums[1 : last + 1]) / (born[last] - born[0])
