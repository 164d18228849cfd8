"""Why memory ran out, by what the failed step would have needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vramlens.analyses.explanation import OomVerdict
from vramlens.analyses.need import EARLIER_STEP, Need, SettingVerdict
from vramlens.units import format_size

_ROUNDING = 1.01
"""What blocks take beyond what is asked for."""
_CLEARLY = 1.04
SPIKE = 1.5


@dataclass(frozen=True, slots=True)
class CauseFacts:
    """What decides the cause of a failure beside its need.

    Attributes:
        capacity_bytes: what the process could reserve.
        leaked_bytes: what surely leaks, where the steps are steps.
        earlier_bytes: what the fullest earlier step added.
        needed_bytes: what the failed step would have added.
    """

    capacity_bytes: int | None
    leaked_bytes: int = 0
    earlier_bytes: int = 0
    needed_bytes: int = 0


def cause_of(oom: OomVerdict, need: Need, settings: Sequence[SettingVerdict], facts: CauseFacts) -> str | None:
    """Why it failed: leak, fragmentation, spike or capacity; as the sums say where nothing of the step is known."""
    if need.basis is None or facts.capacity_bytes is None:
        return oom.cause
    floor = int((need.floor_bytes or need.low_bytes) * _ROUNDING)
    if facts.leaked_bytes and floor > facts.capacity_bytes >= floor - facts.leaked_bytes:
        return "leak"
    if need.basis != EARLIER_STEP:
        return "leak" if oom.cause == "leak" else "capacity"
    fits_in_one_piece = floor <= facts.capacity_bytes
    if fits_in_one_piece and any(row.lives is True for row in settings):
        return "fragmentation"
    if _is_spike(need, facts):
        return "spike"
    clearly = floor * _CLEARLY <= facts.capacity_bytes
    if clearly and any(row.lives is not False for row in settings):
        return "leak" if facts.leaked_bytes else "fragmentation"
    return "leak" if facts.leaked_bytes >= floor - facts.capacity_bytes > 0 else "capacity"


def _is_spike(need: Need, facts: CauseFacts) -> bool:
    grown = facts.needed_bytes > SPIKE * facts.earlier_bytes > 0
    return grown and (need.scale or 1.0) >= SPIKE


def headline_of(oom: OomVerdict, need: Need, cause: str | None, capacity_bytes: int | None) -> str:
    """The verdict in one sentence, by the need; as before where nothing is known of it."""
    if need.basis is None or capacity_bytes is None:
        return oom.headline
    wanted, limit = format_size(oom.requested_bytes or 0), format_size(capacity_bytes)
    if need.peak_reserved_bytes is None or need.basis != EARLIER_STEP:
        low = format_size(need.low_bytes)
        most = f" and at most about {format_size(need.high_bytes)}" if need.high_bytes else ""
        return f"{wanted} did not fit: this step needs at least {low}{most}, and {limit} are to be had"
    needed = format_size(need.limit_bytes or need.peak_reserved_bytes)
    grown = ""
    if need.scale is not None and abs(need.scale - 1) > 0.02:
        grown = f" ({need.scale:.2f} × the earlier one)"
    if cause == "fragmentation":
        floor = format_size(need.floor_bytes or 0)
        return (
            f"{wanted} did not fit between what is alive: this step{grown} needs {floor} at once, which {limit} hold,"
            f" but {needed} with its holes"
        )
    if cause == "leak":
        return oom.headline
    return f"{wanted} did not fit: to finish, this step{grown} needs {needed}, and {limit} are to be had"
