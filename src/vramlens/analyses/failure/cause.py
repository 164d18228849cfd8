"""Why memory ran out, by what the failed step would have needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from vramlens.analyses.explanation import OomVerdict
from vramlens.analyses.failure.need import EARLIER_STEP, Need, SettingVerdict

_ROUNDING = 1.01
"""What blocks take beyond what is asked for."""
_CLEARLY = 1.04
_TELLING_LEAK = 0.1
"""Of what could be reserved: a leak of less is not why it failed."""
_TELLING_GROWTH = 0.01
"""Of what could be reserved: less growth over the recorded steps does not decide a setting."""
_FEWEST_GROWN = 3
_FEW_GROWN = 2
_FALLEN = 0.25
"""Of the growth: steps that began with so much less than one before them only differ in size."""
_SPIKE, _RISE = 2.0, 1.1
"""A spike is twice the fullest earlier step, where those did not rise by a tenth."""


@dataclass(frozen=True, slots=True)
class CauseFacts:
    """What decides the cause of a failure beside its need.

    Attributes:
        capacity_bytes: what the process could reserve.
        leaked_bytes: what surely leaks, where the steps are steps.
        earlier_bytes: what the fullest earlier step added.
        needed_bytes: what the failed step would have added.
        is_as_before: whether an earlier step, the first included, asked for as much.
        rising: whether the earlier steps rose.
        climbing: whether steps, the failed one included, needed more and more.
        growing: whether what steps leave behind grows.
        may_be_growing: whether the few steps so far did.
    """

    capacity_bytes: int | None
    leaked_bytes: int = 0
    earlier_bytes: int = 0
    needed_bytes: int = 0
    is_as_before: bool = False
    rising: bool = False
    climbing: bool = False
    growing: bool = False
    may_be_growing: bool = False

    @property
    def grows(self) -> bool:
        """True where what steps leave behind grows, or may."""
        return self.growing or self.may_be_growing

    @property
    def is_spike(self) -> bool:
        """True where this step would have added far more than any before, and those did not rise."""
        is_more = self.needed_bytes > _SPIKE * self.earlier_bytes > 0
        return is_more and not self.rising and not self.is_as_before


def cause_of(
    oom: OomVerdict, need: Need, settings: Sequence[SettingVerdict], facts: CauseFacts
) -> str | None:
    """Why it failed: leak, fragmentation, spike or capacity; as the sums say where nothing of
    the step is known.
    """
    if need.basis is None or facts.capacity_bytes is None:
        return oom.cause
    floor = int((need.floor_bytes or need.low_bytes) * _ROUNDING)
    if facts.leaked_bytes and floor > facts.capacity_bytes >= floor - facts.leaked_bytes:
        return "leak"
    if need.basis != EARLIER_STEP:
        return "leak" if oom.cause == "leak" else "capacity"
    return _cause_of_similar_step(settings, facts, floor, facts.capacity_bytes)


def cause_in_whole_run(cause: str | None, need: Need, facts: CauseFacts) -> str | None:
    """The cause that a step shows, where all of the run is known: gaps are none if that without
    them is too much.
    """
    floor, capacity = need.floor_bytes, facts.capacity_bytes
    if floor is None or capacity is None or floor <= capacity:
        return cause
    return "capacity" if cause in (None, "fragmentation") else cause


def _cause_of_similar_step(
    settings: Sequence[SettingVerdict], facts: CauseFacts, floor: int, capacity_bytes: int
) -> str:
    """Why a step failed of which an earlier one tells what it needs, without holes ``floor``."""
    lives = {row.lives for row in settings}
    if floor <= capacity_bytes and True in lives:  # with its free bytes in one piece
        return "fragmentation"
    if facts.is_spike:
        return "spike"
    may_live = floor * _CLEARLY <= capacity_bytes and bool(lives - {False})
    if may_live and not facts.growing:
        return "fragmentation"
    telling = 1 if may_live else max(floor - capacity_bytes, _TELLING_LEAK * capacity_bytes)
    return "leak" if facts.leaked_bytes >= telling else "capacity"


def is_rising(own_bytes: Sequence[int]) -> bool:
    """Whether the earlier steps rose; the first also builds what lasts, so it does not count
    where there are more.
    """
    if len(own_bytes) < 2:
        return False
    first = own_bytes[1] if len(own_bytes) > 2 else min(own_bytes)
    return own_bytes[-1] > _RISE * first


def is_growing(start_bytes: Sequence[int], capacity_bytes: int) -> bool:
    """Whether steps began with more and more, each or in stairs; the first two build what lasts."""
    later = start_bytes[2:]
    if len(later) <= _FEWEST_GROWN or later[-1] - later[0] < _TELLING_GROWTH * capacity_bytes:
        return False
    return _fallen(later) <= _FALLEN * (later[-1] - later[0])


def is_climbing(own_bytes: Sequence[int]) -> bool:
    """Whether steps needed more and more, each or in stairs: lengths or sizes that a program raises. The
    first also builds what lasts.
    """
    later = own_bytes[1:]
    if len(later) <= _FEWEST_GROWN or _fallen(later) > _FALLEN * (later[-1] - later[0]):
        return False
    stairs = 0
    highest = later[0]
    for size in later:
        if size > _RISE * highest:
            stairs, highest = stairs + 1, size
    return stairs >= _FEW_GROWN


def _fallen(sizes: Sequence[int]) -> int:
    """The most that one lies below the highest before it."""
    return max(high - size for high, size in zip(accumulate(sizes, max), sizes, strict=True))


def may_be_growing(start_bytes: Sequence[int], capacity_bytes: int) -> bool:
    """Whether the few steps so far began with more each time: too few to say that it goes on."""
    grown = [later - earlier for earlier, later in pairwise(start_bytes[1:])]
    return len(grown) >= _FEW_GROWN and min(grown) >= _TELLING_GROWTH * capacity_bytes
