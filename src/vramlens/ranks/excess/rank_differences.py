"""Why one rank holds more than its peers: a leak, lines, the allocator, memory outside PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from vramlens.ground.verdict import Verdict
from vramlens.ranks.excess.leak_differences import leak_differences
from vramlens.ranks.excess.own_work import OWN_WORK
from vramlens.ranks.excess.rank_against_peers import RankAgainstPeers
from vramlens.ranks.excess.reasons.more_states import state_differences
from vramlens.ranks.excess.reasons.not_resharded import gathered_differences
from vramlens.ranks.excess.reasons.unfrozen import unfrozen_differences
from vramlens.ranks.excess.reasons.whole_copy import whole_copy_differences
from vramlens.ranks.excess.reserved_differences import reserved_differences, with_reserved
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_summary import LineUse
from vramlens.units import GIB, MIB, format_size

_OF_ALL = 0.5
"""Of what other processes hold on a rank's GPU: where its peers' GPUs have as much, all are shared."""
_NOT_TOLD_APART = "this may be the CUDA context, loaded kernels, NCCL or other libraries"
_OUTSIDE = (
    ("nccl", "nccl", Verdict.PROVEN),
    ("this_process_other", "nccl", Verdict.POSSIBLE),
    ("other_processes", "other_process", Verdict.PROVEN),
)
"""Kinds of the ledger that PyTorch does not count: each with the cause that it stands for."""


def differences_of(beside: RankAgainstPeers) -> list[RankDifference]:
    """The reasons why a rank holds more than is usual; [] where it does not."""
    leaks = leak_differences(beside)
    earlier = [*leaks, *unfrozen_differences(beside, leaks)]
    earlier += [*state_differences(beside, earlier), *gathered_differences(beside)]
    earlier += whole_copy_differences(beside)
    differences = [*earlier, *beside.line_differences(earlier)]
    if not any(difference.cause == OWN_WORK for difference in differences):  # gaps follow from it
        differences += reserved_differences(beside, differences)
    told = [with_reserved(beside, difference) for difference in differences]
    return [*told, *_outside_differences(beside)]


def differences_beside_work(
    beside: RankAgainstPeers, leaks: Sequence[RankDifference], is_of_work: Callable[[LineUse], bool]
) -> list[RankDifference]:
    """What a rank holds beside its part of the work that all divide: what single calls and lines
    give away, what is reserved for them, memory outside of PyTorch. That other work leaves other
    gaps in what is reserved is nature.
    """
    differences = beside.differences_of_calls(leaks, is_of_work)
    work = {line.place for line in beside.rank.lines if is_of_work(line)}
    reserved = [
        difference
        for difference in reserved_differences(beside, [*leaks, *differences])
        if difference.cause != "allocator" or difference.place not in {None, *work}
    ]
    return [*differences, *reserved, *_outside_differences(beside)]


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
        if more < max(0.1 * usual, 64 * MIB) or _is_of_other_jobs(kind, size, usual):
            continue
        evidence = [f"{kind}: {format_size(size)}; its peers: {format_size(usual)}"]
        if kind == "this_process_other":
            evidence.append(_NOT_TOLD_APART)
        evidence.append(beside.peaks)
        differences.append(beside.difference(cause, verdict, int(more), evidence=evidence))
    return differences


def _is_of_other_jobs(kind: str, size: int, usual: int) -> bool:
    """True if the GPUs of all ranks are shared with others: how they are spread is not this job's."""
    return kind == "other_processes" and usual >= max(_OF_ALL * size, GIB)
