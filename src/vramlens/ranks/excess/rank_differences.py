"""Why one rank holds more than its peers: a leak, lines, the allocator, memory outside PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from vramlens.ground.verdict import Verdict
from vramlens.ranks.excess.rank_against_peers import ENOUGH_PEERS, SPREADS, RankAgainstPeers
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_summary import LineUse
from vramlens.units import MIB, format_size

_NOT_TOLD_APART = "this may be the CUDA context, loaded kernels, NCCL or other libraries"
_LEAST_RESERVED_SHARE, _LEAST_RESERVED_BY_CHANCE = 0.1, 0.2
"""A rank's unused reserved memory differs by so large a share of what is usually reserved; less
of it is chance where the ranks' sizes are a percent apart.
"""
_OF_LINES = ("leak", "rank0_gather", "rank_only", "object_collective", "full_state_dict")
_DEFAULT = "PyTorch's own"
_OUTSIDE = (
    ("nccl", "nccl", Verdict.PROVEN),
    ("this_process_other", "nccl", Verdict.POSSIBLE),
    ("other_processes", "other_process", Verdict.PROVEN),
)
"""Kinds of the ledger that PyTorch does not count: each with the cause that it stands for."""


def differences_of(beside: RankAgainstPeers) -> list[RankDifference]:
    """The reasons why a rank holds more than is usual; [] where it does not."""
    leaks = beside.leak_differences()
    differences = [*leaks, *beside.line_differences(leaks)]
    differences += _allocator_differences(beside, differences)
    return [*differences, *_outside_differences(beside)]


def differences_beside_work(
    beside: RankAgainstPeers, leaks: Sequence[RankDifference], is_of_work: Callable[[LineUse], bool]
) -> list[RankDifference]:
    """What a rank holds beside its part of the work that all divide: what single calls and lines
    give away, the allocator, memory outside of PyTorch.
    """
    differences = beside.differences_of_calls(leaks, is_of_work)
    of_lines = [*leaks, *differences]
    return [*differences, *_allocator_differences(beside, of_lines), *_outside_differences(beside)]


def _allocator_differences(
    beside: RankAgainstPeers, of_lines: Sequence[RankDifference]
) -> list[RankDifference]:
    """Memory that is reserved beyond what peers with the same allocations reserve; told beside
    other differences where these are single lines that hold less than that.
    """
    usual_gap, _ = beside.usual.gap
    gap = beside.rank.peak_reserved_bytes - beside.rank.peak_allocated_bytes
    more = gap - usual_gap
    # A rank that holds less than its peers has a wider gap under the same reserved memory.
    wider = beside.rank.peak_reserved_bytes - beside.usual.reserved_bytes
    other_settings = _other_settings(beside)
    threshold = _least_gap(beside, has_other_settings=bool(other_settings))
    if min(more, 2 * wider) < threshold or more < beside.more:
        return []
    # What is reserved on top of what is held follows from it.
    if any(difference.cause not in _OF_LINES for difference in of_lines):
        return []
    # The space of what a line allocates may be there twice: once freed, it is split for others.
    if of_lines and more < 2 * max(threshold, sum(difference.bytes for difference in of_lines)):
        return []
    if not other_settings and beside.steps().vary:
        return []  # which rank's cache fits least to batches that vary is chance
    cause = "allocator_settings" if other_settings else "allocator"
    evidence = [
        *([other_settings] if other_settings else []),
        f"reserved but not allocated: {format_size(gap)}, peers: {format_size(usual_gap)}",
    ]
    return [beside.difference(cause, Verdict.PROVEN, more, evidence=evidence)]


def _least_gap(beside: RankAgainstPeers, *, has_other_settings: bool) -> float:
    """From how many more bytes on what is reserved and unused differs: other settings are a reason;
    else chance decides in which order requests are served.
    """
    share = _LEAST_RESERVED_SHARE if has_other_settings else _LEAST_RESERVED_BY_CHANCE
    threshold = max(share * beside.usual.reserved_bytes, 64 * MIB)
    if has_other_settings:
        return threshold
    _, spread = beside.usual.gap
    is_known = len(beside.usual.ranks) >= ENOUGH_PEERS
    return max(threshold, (SPREADS if is_known else 2) * spread)


def _other_settings(beside: RankAgainstPeers) -> str:
    """One sentence on allocator settings that most peers do not have; "" where they are alike
    or unknown.
    """
    own_conf, usual_conf = beside.rank.alloc_conf, beside.usual.alloc_conf
    if own_conf is None or usual_conf is None or own_conf == usual_conf:
        return ""
    return f"allocator settings: {own_conf or _DEFAULT}; its peers: {usual_conf or _DEFAULT}"


def _bytes_of_strays(beside: RankAgainstPeers) -> float:
    """What other ranks of the job have on this rank's device; of one that did not ask its driver
    that may be all that others have.
    """
    sizes = [stray.process_bytes for stray in beside.strays]
    return sum(inf if size is None else size for size in sizes)


def _outside_differences(beside: RankAgainstPeers) -> list[RankDifference]:
    """Memory outside of PyTorch's allocator, where the driver was asked."""
    ledger, usual_ledger = dict(beside.rank.ledger), beside.usual.ledger
    if not ledger or not usual_ledger:
        return []
    differences = []
    for kind, cause, verdict in _OUTSIDE:
        size, usual = ledger.get(kind, 0), usual_ledger.get(kind, 0)
        more: float = size - usual
        if kind == "other_processes":
            more -= _bytes_of_strays(beside)
        if more < max(0.1 * usual, 64 * MIB):
            continue
        evidence = [f"{kind}: {format_size(size)}; its peers: {format_size(usual)}"]
        if kind == "this_process_other":
            evidence.append(_NOT_TOLD_APART)
        differences.append(beside.difference(cause, verdict, int(more), evidence=evidence))
    return differences
