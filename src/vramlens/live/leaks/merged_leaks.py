"""Leaks of one statement as one, and what that weighs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

from vramlens.ground.verdict import Verdict
from vramlens.live.growth.pace import PAUSE
from vramlens.live.heap.tensors import Storage
from vramlens.live.holder.owner import name_of_parts
from vramlens.live.leaks.leak_report import LiveLeak
from vramlens.units import format_size

_TINY_BYTES = 64
"""A step without a graph: PyTorch rounds each storage up to that. A million steps are 64 MB."""
_NUMBER_BYTES, _MANY_NUMBERS_BYTES = 8, 1024
"""Where storages are of one number each (a double), as many as a metric for each of 128 classes or
layers: a million steps are 1 GB, which half as long shows.
"""
_FEWEST_ENDED = 2
"""Other collections that one statement filled, and that have stopped growing: one may be full by chance."""
KeptLeak = tuple[LiveLeak, set[Storage | None]]
"""A leak and the storages that are kept."""


def merged(kept_leaks: Sequence[KeptLeak]) -> list[KeptLeak]:
    """Leaks of one statement as one, the surest and largest first; those of a few numbers are
    possible at most.
    """
    by_statement: dict[Hashable, KeptLeak] = {}
    stopped: dict[Hashable, list[LiveLeak]] = defaultdict(list)
    for leak, _ in kept_leaks:
        if leak.has_stopped and _is_harmless(leak):
            stopped[_statement(leak)].append(leak)
    for new_leak, storages in kept_leaks:
        key = _statement(new_leak)
        leak = _of_several(new_leak, stopped[key])
        if key in by_statement:
            earlier, earlier_storages = by_statement[key]
            by_statement[key] = _sum(earlier, leak), earlier_storages | storages
        else:
            by_statement[key] = leak, storages
    weighed = [(_weighed(leak), storages) for leak, storages in by_statement.values()]
    return sorted(weighed, key=lambda pair: (pair[0].verdict.rank, -pair[0].bytes_per_step))


def _statement(leak: LiveLeak) -> Hashable:
    """The same for leaks of one statement that are of one kind."""
    owner = leak.owner
    if owner is None or not owner.line:
        return id(leak)
    return owner.file, owner.line, leak.kind, leak.sure


def _is_harmless(leak: LiveLeak) -> bool:
    return leak.verdict == Verdict.NOT_A_PROBLEM


def _of_several(leak: LiveLeak, stopped: Sequence[LiveLeak]) -> LiveLeak:
    """A leak, which is none where it began late and is one of several that a statement fills, each for a
    while: those of requests. One that has grown for longer than the others may go on.

    Args:
        stopped: the others that have stopped growing.
    """
    owner = leak.owner
    if not leak.is_late or leak.verdict != Verdict.POSSIBLE or owner is None:
        return leak
    if len(stopped) < _FEWEST_ENDED or _span(leak) > PAUSE * max(map(_span, stopped)):
        return leak
    others = f"{len(stopped)} others that line {owner.line} fills"
    reason = f"{others} have stopped growing: each is filled for a while"
    return replace(leak, verdict=Verdict.NOT_A_PROBLEM, reason=reason, fix=None)


def _span(leak: LiveLeak) -> int:
    return (leak.last_step or 0) - (leak.first_step or 0)


def _sum(first: LiveLeak, second: LiveLeak) -> LiveLeak:
    """Both leaks as one, in the words of the surer and larger."""
    main = max(first, second, key=lambda leak: (-leak.verdict.rank, leak.bytes))
    alike = [leak for leak in (first, second) if _is_harmless(leak) == _is_harmless(main)]
    return replace(
        _of_parts(main, first, second),
        bytes_per_step=sum(leak.bytes_per_step for leak in alike),
        bytes=first.bytes + second.bytes,
        storages=first.storages + second.storages,
        nodes=first.nodes + second.nodes,
    )


def _of_parts(main: LiveLeak, *leaks: LiveLeak) -> LiveLeak:
    """One of some leaks, with the owner of all, where they are parts of one thing: the lists of a
    dict.
    """
    names = {leak.owner.name for leak in leaks if leak.owner is not None}
    common_names = set(map(name_of_parts, names))
    if main.owner is None or len(names) == 1 or len(common_names) > 1:
        return main
    name = common_names.pop()
    fix = main.fix and main.fix.replace(main.owner.name, name)
    return replace(main, owner=replace(main.owner, name=name), fix=fix)


def _weighed(leak: LiveLeak) -> LiveLeak:
    reason = _why_no_weight(leak) if leak.sure else ""
    if not reason:
        return leak
    return replace(leak, verdict=Verdict.POSSIBLE, reason=leak.reason_and(reason))


def _why_no_weight(leak: LiveLeak) -> str:
    """The reason why what a statement keeps in each step is of no weight; empty where it is."""
    if leak.nodes or not leak.storages:
        return ""
    mean_bytes = leak.bytes / leak.storages
    most_bytes = _MANY_NUMBERS_BYTES if mean_bytes <= _NUMBER_BYTES else _TINY_BYTES
    if leak.bytes_per_step > most_bytes:
        return ""
    return f"{format_size(leak.bytes_per_step)} per step without a graph: single numbers"
