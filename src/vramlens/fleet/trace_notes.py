"""What the profiler traces of some ranks say beside their memory: which GPU is less busy, and which
operator takes longer there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vramlens.analyses.profile.explained_profile import explain_profile
from vramlens.analyses.profile.operators import own_times
from vramlens.api import load
from vramlens.errors import InputError
from vramlens.foreign_text import visible
from vramlens.units import agreeing, format_duration, listed

_MOST_NAMED = 8
_TIMES_LONGER = 1.3
_LEAST_SHARE = 0.05
"""Of the time of all operators of a rank: what differs by less is not named."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One rank's times.

    Attributes:
        busy_share: of the GPU; of the CPU where the trace has no GPU.
        on_gpu: which.
        own_ns: by operator, its own time there.
    """

    busy_share: float
    on_gpu: bool
    own_ns: Mapping[str, int]


def trace_notes(times: Mapping[int, RankTimes]) -> tuple[str, ...]:
    """Sentences on the ranks' times; none on fewer than two ranks."""
    if len(times) < 2:
        return ()
    return (_busy_note(times), *_operator_notes(times))


def times_of_trace(path: str) -> RankTimes:
    """The times that a trace of PyTorch's profiler has.

    Raises:
        VramlensError: it cannot be read, or is not such a trace.
    """
    trace = load(path).profile
    if trace is None:
        raise InputError(f"{path}: is not a profiler trace")
    profile = explain_profile(trace)
    use = profile.use
    busy_ns = profile.cpu_use.busy_ns if use is None else use.busy_ns
    on_gpu = use is not None
    return RankTimes(busy_ns / profile.wall_ns, on_gpu, own_times(profile.operators, on_gpu=on_gpu))


def _busy_note(times: Mapping[int, RankTimes]) -> str:
    by_share = sorted(times, key=lambda rank: (times[rank].busy_share, rank))
    shown = by_share if len(by_share) <= _MOST_NAMED else [*by_share[:3], *by_share[-3:]]
    shares = ", ".join(f"rank {rank} {100 * times[rank].busy_share:.0f}%" for rank in shown)
    device = "GPU" if all(rank.on_gpu for rank in times.values()) else "device"
    return f"{device} busy, the least first: {shares}"


def _operator_notes(times: Mapping[int, RankTimes]) -> Iterator[str]:
    """Yields the operator that differs most on each rank where one does."""
    for name, ranks in _longer_operators(times).items():
        usual = statistics.median(times[rank].own_ns.get(name, 0) for rank in times)
        longest = max(ranks, key=lambda rank: times[rank].own_ns[name])
        noun = agreeing(len(ranks), "rank", "ranks")
        subject = f"{noun} {listed(sorted(ranks), _MOST_NAMED)}"
        yield (
            f"{subject}: {visible(name)} takes longer by itself,"
            f" {format_duration(times[longest].own_ns[name])} (usual:"
            f" {format_duration(int(usual))})"
        )


def _longer_operators(times: Mapping[int, RankTimes]) -> dict[str, list[int]]:
    """By operator the ranks on which it takes longer than on the others, and most of all there."""
    longer: dict[str, list[int]] = {}
    for rank, rank_times in times.items():
        other_ranks = [other for number, other in times.items() if number != rank]
        excess = {
            name: ns
            - max(_TIMES_LONGER * statistics.median(o.own_ns.get(name, 0) for o in other_ranks), 0)
            for name, ns in rank_times.own_ns.items()
        }
        name = max(excess, key=lambda name: (excess[name], name), default=None)
        if name is not None and excess[name] > _LEAST_SHARE * sum(rank_times.own_ns.values()):
            longer.setdefault(name, []).append(rank)
    return longer
