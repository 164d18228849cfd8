"""The requests of a program, had it drawn its random numbers in another order.

A mask of random numbers, such as one that drops edges, selects a little more or less each time. A
size that is larger than all before may need new blocks, where it just exceeds a segment (a multiple
of 2 MiB): then nothing of what is cached fits, and memory is reserved anew. When that comes is
chance: of 120 steps of ``u13_gatv2_nodes`` (benchmarks/prediction) the first drew 379.98 MiB, and
reserved segments of 380; the fourth drew a little more than 380, and all segments were there twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from vramlens.prediction.requests.request_log import RequestLog

_Place = tuple[int, int]
"""The number of a stack, and how often it has requested since the draw."""


def with_other_draws(log: RequestLog) -> Iterator[RequestLog]:
    """The requests with the most drawn first, and with the least before it."""
    for is_least_first in (False, True):
        other = log.plain()
        for turns in _turns_by_draw(log):
            falling = _from_most_to_least(turns, log.sizes)
            ordered = [falling[-1], *falling[:-1]] if is_least_first else falling
            for rows, rows_there in zip(turns, ordered, strict=True):
                for place in rows.keys() & rows_there.keys():
                    other.sizes[rows[place]] = log.sizes[rows_there[place]]
        if other.sizes != log.sizes:
            yield other


def _turns_by_draw(log: RequestLog) -> list[list[dict[_Place, int]]]:
    """The rows from each draw to the next, by place; those of the same draw together, which is
    followed by the same request.
    """
    turns: dict[int, list[dict[_Place, int]]] = defaultdict(list)
    for begin, end in pairwise([*log.drawn_at, len(log.sizes)]):
        rows: dict[_Place, int] = {}
        times: Counter[int] = Counter()
        for row in range(begin, end):
            stack = log.stacks[row]
            rows[stack, times[stack]] = row
            times[stack] += 1
        if rows:
            turns[log.stacks[begin]].append(rows)
    return list(turns.values())


def _from_most_to_least(
    turns: Sequence[Mapping[_Place, int]], sizes: Sequence[int]
) -> list[Mapping[_Place, int]]:
    """The turns in order of the bytes at the places that all of them have."""
    shared = set(turns[0]).intersection(*turns[1:])

    def requested_bytes(rows: Mapping[_Place, int]) -> int:
        return sum(sizes[rows[place]] for place in shared)

    return sorted(turns, key=requested_bytes, reverse=True)
