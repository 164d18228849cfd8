"""A finding on steps that take longer and longer while memory rises."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import combinations

from vramlens.analyses.finding import Finding
from vramlens.analyses.profile.explained_profile import Profile
from vramlens.ground.verdict import Verdict
from vramlens.units import format_duration, format_size

_LEAST_STEPS = 6
_LEAST_RISE = 1.2
"""The last third of the steps takes so many times as long as the first."""
_MOST_COMPARED = 300
_LEAST_AGREEMENT = 0.7
"""Of all pairs of steps, those whose order agrees less those whose order does not: Kendall's tau."""


def slower_findings(profile: Profile) -> Iterator[Finding]:
    """Yields what rises together: the time of a step and the memory at its peak."""
    memory = profile.memory
    if memory is None:
        return
    durations = [step.end_ns - step.start_ns for step in profile.steps]
    peaks = memory.step_peaks
    if len(durations) < _LEAST_STEPS or len(peaks) != len(durations):
        return
    third = len(durations) // 3
    first, last = (statistics.median(part) for part in (durations[:third], durations[-third:]))
    if last < _LEAST_RISE * first or peaks[-1] <= peaks[0]:
        return
    numbers = range(0, len(durations), 1 + len(durations) // _MOST_COMPARED)
    compared = durations[:: numbers.step]
    agreements = (
        _agreement(numbers, compared),
        _agreement(peaks[:: numbers.step], compared),
    )
    if min(agreements) < _LEAST_AGREEMENT:
        return
    yield Finding(
        id="profile_slower",
        verdict=Verdict.LIKELY,
        title=f"steps take longer and longer as memory rises: {format_duration(int(first))} at"
        f" the beginning, {format_duration(int(last))} at the end",
        bytes=peaks[-1] - peaks[0],
        evidence=(
            f"their peaks on {memory.device} rise from {format_size(peaks[0])} to"
            f" {format_size(peaks[-1])} over {len(durations)} steps",
        ),
        fix="find what each step adds to: `vramlens leaks` on this trace; a list of tensors, a"
        " graph that grows, a cache that is searched",
    )


def _agreement(first: Sequence[float], second: Sequence[float]) -> float:
    """Kendall's tau of two columns; pairs that are equal in one of them count for neither."""
    products = [
        (first[later] - first[earlier]) * (second[later] - second[earlier])
        for earlier, later in combinations(range(len(first)), 2)
    ]
    agreeing = sum(product > 0 for product in products)
    opposed = sum(product < 0 for product in products)
    return (agreeing - opposed) / len(products)
