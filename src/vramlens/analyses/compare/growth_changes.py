"""Growth by line: what each line leaves behind with every step, before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramlens.analyses.compare.alignment import Alignment
from vramlens.analyses.compare.compared_run import Run
from vramlens.analyses.compare.job_change import GROWTH_SHARE
from vramlens.analyses.finding import Place
from vramlens.ground.verdict import Verdict

if TYPE_CHECKING:
    from vramlens.analyses.compare.diff_answer import Diff
    from vramlens.analyses.leaks.recorded_leak import RecordedLeak


@dataclass(frozen=True, slots=True)
class GrowthChange:
    """The growth of one line.

    Attributes:
        place: the line, as the run after knows it; as the run before did where it is gone; None for
            growth without a line.
        before_bytes, after_bytes: what a step leaves behind there.
    """

    place: Place | None
    before_bytes: int
    after_bytes: int

    @property
    def change_bytes(self) -> int:
        """After minus before, each step."""
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class RunGrowth:
    """What every step leaves behind in all, in two runs of which one leaves more.

    Attributes:
        before_bytes, after_bytes: each step.
        leak: of the run that grows more, the line that grows fastest; None where none is known.
        is_certain: whether ``vramlens leaks`` calls it proven or likely; else it is what may be a leak.
        is_small: whether nothing of it matters.
        is_rest_small: whether what still grows after does not matter.
    """

    before_bytes: int
    after_bytes: int
    leak: RecordedLeak | None
    is_certain: bool
    is_small: bool
    is_rest_small: bool

    @property
    def is_gone(self) -> bool:
        """Whether it grew before and does not now, but for what does not matter."""
        return self.after_bytes < self.before_bytes and (not self.after_bytes or self.is_rest_small)


def run_growth(diff: Diff) -> RunGrowth | None:
    """How the growth of the runs differs; None where it does not, or one has too few steps to tell."""
    old, new = diff.growth_before, diff.growth_after
    is_certain = old is not None and new is not None and bool(old or new)
    if not is_certain:
        old = old or diff.before.growth_at_most
        new = new or diff.after.growth_at_most
    if old is None or new is None or abs(new - old) <= GROWTH_SHARE * max(old, new):
        return None
    before, after = _growing(diff.before, is_certain), _growing(diff.after, is_certain)
    larger = after if new > old else before
    growing = (*before, *after)
    if not is_certain and (not larger or all(leak.is_small for leak in growing)):
        return None
    return RunGrowth(
        before_bytes=old,
        after_bytes=new,
        leak=next(iter(larger), None),
        is_certain=is_certain,
        is_small=all(leak.is_small for leak in growing),
        is_rest_small=bool(before) and all(leak.is_small for leak in after),
    )


def _growing(run: Run, is_certain: bool) -> tuple[RecordedLeak, ...]:
    """What grows for certain or likely, or what only may, too; none where no steps are those of the run."""
    if is_certain:
        return run.leaks
    if not run.explanation.steps.count:
        return ()
    may_grow = (Verdict.PROVEN, Verdict.LIKELY, Verdict.POSSIBLE)
    growing = [
        leak for leak in run.explanation.leaks if leak.rows is not None and leak.verdict in may_grow
    ]
    return tuple(sorted(growing, key=lambda leak: -leak.bytes_per_step))


def growth_changes(before: Run, after: Run, alignment: Alignment) -> tuple[GrowthChange, ...]:
    """The lines whose growth is another now, the largest change first.

    Nothing where one of the runs has too few steps to tell.
    """
    if before.growth is None or after.growth is None:
        return ()
    old = {
        place if place is None else alignment.after.get(place, place): growth_bytes
        for place, growth_bytes in _growth_by_line(before).items()
    }
    new = _growth_by_line(after)
    changes = [
        GrowthChange(place, old.get(place, 0), new.get(place, 0))
        for place in dict.fromkeys([*new, *old])
    ]
    telling = [
        change
        for change in changes
        if abs(change.change_bytes) > GROWTH_SHARE * max(change.before_bytes, change.after_bytes)
    ]
    return tuple(sorted(telling, key=lambda change: -abs(change.change_bytes)))


def _growth_by_line(run: Run) -> Mapping[Place | None, int]:
    """Bytes that a step leaves behind, by line."""
    growth_bytes: dict[Place | None, int] = {}
    for leak in run.leaks:
        growth_bytes[leak.place] = growth_bytes.get(leak.place, 0) + leak.bytes_per_step
    return growth_bytes
