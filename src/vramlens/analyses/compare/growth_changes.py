"""Growth by line: what each line leaves behind with every step, before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vramlens.analyses.compare.alignment import Alignment
from vramlens.analyses.compare.compared_run import Run
from vramlens.analyses.compare.job_change import GROWTH_SHARE
from vramlens.analyses.finding import Place


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
