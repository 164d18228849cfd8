"""Leaks of one statement as one, and what that weighs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vramlens.ground.verdict import Verdict
from vramlens.live.heap.tensors import Storage
from vramlens.live.holder.lookalikes import NONE, POSSIBLE, are_numbers
from vramlens.live.leaks.leak_report import LiveLeak

_ORDER = (Verdict.PROVEN, Verdict.LIKELY, POSSIBLE, NONE)
Kept = tuple[LiveLeak, set[Storage | None]]
"""A leak and the storages that are kept."""


def merged(leaks: Sequence[Kept]) -> list[Kept]:
    """Leaks of one statement as one, the surest and largest first; those of a few numbers are
    possible at most.
    """
    found: dict[Any, Kept] = {}
    for leak, kept in leaks:
        owner = leak.owner
        key: Any = (
            (owner.file, owner.line, leak.kind, leak.is_leak)
            if owner is not None and owner.line
            else id(leak)
        )
        if key not in found:
            found[key] = leak, kept
            continue
        first, before = found[key]
        largest = max(first, leak, key=lambda one: (-_ORDER.index(one.verdict), one.bytes))
        whole = replace(
            largest,
            bytes_per_step=first.bytes_per_step + leak.bytes_per_step,
            bytes=first.bytes + leak.bytes,
            storages=first.storages + leak.storages,
            nodes=first.nodes + leak.nodes,
        )
        found[key] = whole, before | kept
    weighed = [(_weighed(leak), kept) for leak, kept in found.values()]
    return sorted(
        weighed, key=lambda pair: (_ORDER.index(pair[0].verdict), -pair[0].bytes_per_step)
    )


def _weighed(leak: LiveLeak) -> LiveLeak:
    reason = are_numbers(leak) if leak.is_leak else ""
    return replace(leak, verdict=POSSIBLE, why=(*leak.why, reason)) if reason else leak
