"""Leaks of one statement as one, and what that weighs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from vramlens.live.heap.tensors import Storage
from vramlens.live.holder.lookalikes import POSSIBLE, are_numbers
from vramlens.live.holder.owner import name_of_parts
from vramlens.live.leaks.leak_report import LiveLeak

KeptLeak = tuple[LiveLeak, set[Storage | None]]
"""A leak and the storages that are kept."""


def merged(kept_leaks: Sequence[KeptLeak]) -> list[KeptLeak]:
    """Leaks of one statement as one, the surest and largest first; those of a few numbers are
    possible at most.
    """
    by_statement: dict[Hashable, KeptLeak] = {}
    for leak, storages in kept_leaks:
        key = _statement(leak)
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


def _sum(first: LiveLeak, second: LiveLeak) -> LiveLeak:
    """Both leaks as one, in the words of the surer and larger."""
    main = max(first, second, key=lambda leak: (-leak.verdict.rank, leak.bytes))
    return replace(
        _of_parts(main, first, second),
        bytes_per_step=first.bytes_per_step + second.bytes_per_step,
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
    reason = are_numbers(leak) if leak.sure else ""
    return leak if not reason else replace(leak, verdict=POSSIBLE, reason=leak.reason_and(reason))
