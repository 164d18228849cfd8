"""Strangers: recordings of another program than the rest, of which no comparison of ranks can
say anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from vramlens.analyses.finding import Place
from vramlens.ranks.rank_summary import RankSummary

_LEAST_SHARED = 0.25
"""Ranks of one job have more than this of their bytes on lines that another one has, too. (In
tests/data they have 0.63 and more, different programs of one file 0.)
"""


def strangers_of(ranks: Sequence[RankSummary]) -> frozenset[int]:
    """The ranks whose recordings share next to no line with any other; none where the job's own
    record joins them.
    """
    bytes_of_lines = {summary.rank: _bytes_of_lines(summary) for summary in ranks}
    candidates = {rank: sizes for rank, sizes in bytes_of_lines.items() if sizes}
    is_one_job = all((summary.world_size or 0) > 1 for summary in ranks)
    if len(candidates) < 2 or is_one_job:
        return frozenset()
    owners = Counter(chain.from_iterable(candidates.values()))
    return frozenset(
        rank for rank, sizes in candidates.items() if _shared_share(sizes, owners) < _LEAST_SHARED
    )


def _bytes_of_lines(summary: RankSummary) -> Counter[Place]:
    """The peak bytes of each line of the program."""
    sizes: Counter[Place] = Counter()
    for line in summary.lines:
        if line.place is not None:
            sizes[line.place] += line.peak_bytes
    return sizes


def _shared_share(sizes: Counter[Place], owners: Counter[Place]) -> float:
    """The share of a rank's bytes that is on lines that another rank has, too, from 0 to 1."""
    total = sizes.total()
    shared = sum(size for place, size in sizes.items() if owners[place] > 1)
    return shared / total if total else 1.0


def strangers_note(strangers: frozenset[int], count: int) -> list[str]:
    """One sentence on them; none where there are none.

    Args:
        strangers: their numbers.
        count: of how many ranks.
    """
    if not strangers:
        return []
    if len(strangers) == count:
        return [
            "these look like recordings of different programs (they share almost no lines), so "
            "the ranks are not compared"
        ]
    names = ", ".join(map(str, sorted(strangers)))
    subject = f"ranks {names} look like recordings"
    if len(strangers) == 1:
        subject = f"rank {names} looks like a recording"
    return [
        f"{subject} of another program (it shares almost no lines with the others), so it is "
        "not compared"
    ]
