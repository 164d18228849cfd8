"""The load of experts: which rank receives far more than its peers in all-to-all exchanges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import prod

from vramlens.ranks.peers.usual import lower_median
from vramlens.trace.flight import Collective, FlightRecord

_FEWEST_RANKS = 2
_HOT = 1.5
"""Times what the usual rank receives: less is how tokens fall."""
_NAMES = ("all_to_all", "alltoall")


def note_of_hot_experts(flights: Mapping[int, FlightRecord]) -> list[str]:
    """One sentence a process group in which a rank receives far more than the usual one."""
    received: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for rank, flight in flights.items():
        for call in flight.collectives:
            if any(name in call.name for name in _NAMES):
                received[call.group][rank] += _output_elements(call)
    return [
        note
        for group, elements_by_rank in sorted(received.items())
        for note in _note(group, elements_by_rank)
    ]


def _output_elements(call: Collective) -> int:
    return sum(prod(shape) for shape in call.output_sizes)


def _note(group: str, elements_by_rank: Mapping[int, int]) -> list[str]:
    if len(elements_by_rank) < _FEWEST_RANKS:
        return []
    usual = lower_median(elements_by_rank.values())
    hottest = max(elements_by_rank, key=lambda rank: elements_by_rank[rank])
    most_elements = elements_by_rank[hottest]
    if not usual or most_elements < _HOT * usual:
        return []
    return [
        f"rank {hottest} receives {most_elements / usual:.1f} times what the usual rank does in all_to_all of"
        f" group {group} ({most_elements:,} elements, usually {usual:,}): its experts are hot"
    ]
