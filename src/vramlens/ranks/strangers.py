"""Strangers: recordings of another program than the rest, of which no comparison of ranks can
say anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vramlens.analyses.finding import Place
from vramlens.ranks.summary import RankSummary

_LEAST_SHARED = 0.25
"""Ranks of one job have more than this of their bytes on lines that another one has, too. (In
tests/data they have 0.63 and more, different programs of one file 0.)
"""


def strangers_of(ranks: Sequence[RankSummary]) -> frozenset[int]:
    """The ranks whose recordings share next to no line with any other; none where the job's own
    record joins them.
    """
    known = [one for one in ranks if any(line.place is not None for line in one.lines)]
    if len(known) < 2 or all((one.world_size or 0) > 1 for one in ranks):
        return frozenset()
    owners: Counter[Place] = Counter()
    for one in known:
        owners.update({line.place for line in one.lines if line.place is not None})
    return frozenset(one.rank for one in known if _shared(one, owners) < _LEAST_SHARED)


def _shared(one: RankSummary, owners: Counter[Place]) -> float:
    """How much of a rank's bytes are on lines that another rank has, too, from 0 to 1."""
    placed = [(line.place, line.peak_bytes) for line in one.lines if line.place is not None]
    whole = sum(size for _, size in placed)
    return sum(size for place, size in placed if owners[place] > 1) / whole if whole else 1.0


def told(strangers: frozenset[int], count: int) -> list[str]:
    """One sentence on them; none where there are none."""
    if not strangers:
        return []
    if len(strangers) == count:
        return [
            "these look like recordings of different programs: next to no line is in two of them, so that no rank is"
            " compared with another"
        ]
    names = ", ".join(map(str, sorted(strangers)))
    which = (
        f"rank {names} looks like a recording"
        if len(strangers) == 1
        else f"ranks {names} look like recordings"
    )
    return [
        f"{which} of another program: next to no line is in any other, so that it is not compared"
    ]
