"""Workloads: replicas of a model that serve other requests than each other, such as those that read
prompts and those that write answers. Each holds more of something than the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from vramlens.ranks.peers.usual import LineKey, key_of, lower_median
from vramlens.ranks.rank_summary import RankSummary

_LARGER = 1.5
"""Times the bytes: requests of one kind are not so far apart."""
_LEAST_PART = 0.05
"""Of the peak: what replicas of another kind hold more, and less, of such lines."""
_LEAST_OF_LINE = 0.0001
"""Of the peak: what lines with less hold does not tell kinds apart."""
_MOST_KINDS = 8
"""Of what is served; more are no kinds."""
_MOST_COMPARED = 64
"""Replicas of a kind that are set beside each other."""


@dataclass(frozen=True, slots=True)
class _Replica:
    """A replica by its usual rank.

    Attributes:
        members: its ranks.
        lines: what each line holds at most.
        peak_bytes: the peak.
    """

    members: tuple[int, ...]
    lines: dict[LineKey, int]
    peak_bytes: int


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
    kinds: list[list[_Replica]] = []
    for members in replicas:
        replica = _replica_of(members, [present[rank] for rank in members])
        alike = [kind for kind in kinds if not _is_other(replica, kind[0])]
        # Between two kinds, or of very many, there are none.
        if len(alike) > 1 or len(kinds) > _MOST_KINDS:
            return ()
        if alike:
            alike[0].append(replica)
        else:
            kinds.append([replica])
    if len(kinds) < 2 or not _are_apart(kinds):
        return ()
    members_of = [chain.from_iterable(replica.members for replica in kind) for kind in kinds]
    return tuple(sorted(tuple(sorted(members)) for members in members_of))


def _are_apart(kinds: Sequence[Sequence[_Replica]]) -> bool:
    """True if no replica of one kind is like one of another kind: each is of one kind whichever
    comes first.
    """
    return all(
        _is_other(own, other)
        for first, second in combinations(kinds, 2)
        for own in first[:_MOST_COMPARED]
        for other in second[:_MOST_COMPARED]
    )


def _replica_of(members: Sequence[int], ranks: Sequence[RankSummary]) -> _Replica:
    peak_bytes = lower_median(summary.peak_requested_bytes for summary in ranks)
    return _Replica(tuple(members), _usual_lines(ranks), peak_bytes)


def _usual_lines(ranks: Sequence[RankSummary]) -> dict[LineKey, int]:
    sizes: dict[LineKey, list[int]] = defaultdict(list)
    for summary in ranks:
        least_bytes = _LEAST_OF_LINE * summary.peak_requested_bytes
        for line in summary.lines:
            if line.peak_bytes < least_bytes:
                break  # the largest line comes first
            sizes[key_of(line)].append(line.peak_bytes)
    return {key: lower_median(of_line) for key, of_line in sizes.items()}


def _is_other(own: _Replica, other: _Replica) -> bool:
    least_bytes = max(1, _LEAST_PART * max(own.peak_bytes, other.peak_bytes))
    more = min(_far_more(own.lines, other.lines), _far_more(other.lines, own.lines))
    return more >= least_bytes


def _far_more(own: dict[LineKey, int], other: dict[LineKey, int]) -> int:
    """What lines of both hold more in one, of those that hold far more there."""
    both = ((size, other.get(key, 0)) for key, size in own.items())
    return sum(size - usual for size, usual in both if size > _LARGER * usual > 0)
