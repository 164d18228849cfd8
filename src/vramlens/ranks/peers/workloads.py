"""Workloads: replicas of a model that serve other requests than each other, such as those that read
prompts and those that write answers. Each holds more of something than the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from vramlens.ranks.peers.usual import LineKey, key_of, lower_median
from vramlens.ranks.rank_summary import RankSummary

_LARGER = 1.5
"""Times the bytes: requests of one kind are not so far apart."""
_LEAST_PART = 0.05
"""Of the peak: what replicas of another kind hold more, and less, of such lines."""
_LEAST_OF_LINE = 0.0001
"""Of the peak: what lines with less hold does not tell kinds apart."""
_Replica = dict[LineKey, int]
"""What each line of a usual rank holds at most."""


def ranks_by_workload(
    ranks: Sequence[RankSummary], replicas: Iterable[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    """The ranks of replicas that hold much more of some lines and much less of others than the
    rest, kind by kind; () where all are of one.

    A fault makes a replica hold more, and nothing less. Only ranks that do not train are of
    several kinds.
    """
    if any(summary.trains or summary.died for summary in ranks):
        return ()
    present = {summary.rank: summary for summary in ranks}
    kinds: list[tuple[_Replica, int, list[int]]] = []
    for members in replicas:
        usual = _usual_lines([present[rank] for rank in members])
        peak = lower_median(present[rank].peak_requested_bytes for rank in members)
        same = [kind for kind in kinds if not _is_other(usual, peak, kind[0], kind[1])]
        if len(same) > 1:
            return ()  # between two kinds: there are none
        if same:
            same[0][2].extend(members)
        else:
            kinds.append((usual, peak, list(members)))
    return tuple(sorted(tuple(sorted(members)) for _, _, members in kinds)) if kinds[1:] else ()


def _usual_lines(ranks: Sequence[RankSummary]) -> _Replica:
    sizes: dict[LineKey, list[int]] = defaultdict(list)
    for summary in ranks:
        least_bytes = _LEAST_OF_LINE * summary.peak_requested_bytes
        for line in summary.lines:
            if line.peak_bytes < least_bytes:
                break  # the largest line comes first
            sizes[key_of(line)].append(line.peak_bytes)
    return {key: lower_median(of_line) for key, of_line in sizes.items()}


def _is_other(own: _Replica, own_peak: int, other: _Replica, other_peak: int) -> bool:
    least = _LEAST_PART * max(own_peak, other_peak)
    return min(_far_more(own, other), _far_more(other, own)) >= least


def _far_more(own: _Replica, other: _Replica) -> int:
    """What lines of both hold more in one, of those that hold far more there."""
    both = ((size, other.get(key, 0)) for key, size in own.items())
    return sum(size - usual for size, usual in both if size > _LARGER * usual > 0)
