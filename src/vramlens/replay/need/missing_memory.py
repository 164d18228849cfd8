"""What a failed step lacks whatever the allocator does: advice that saves less cannot cure it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.failure.need import Need
    from vramlens.analyses.finding import Finding

_SAVINGS = (
    "gradients_kept",
    "unused_graph",
    "eval_with_grad",
    "unconsumed_forward",
    "gathered_outputs",
    "operator_buffers",
    "optimizer_state",
    "two_copies",
)
"""Findings whose bytes are what their fix saves at most."""


def missing_bytes(need: Need, capacity_bytes: int | None) -> int:
    """By how much what must be alive at once exceeds what could be reserved; 0 where it does not,
    or nothing tells.
    """
    if need.floor_bytes is None or capacity_bytes is None:
        return 0
    return max(0, need.floor_bytes - capacity_bytes)


def with_shortage(finding: Finding, missing: int) -> Finding:
    """The finding, with a word on what is still missing after its fix."""
    saved = finding.bytes or 0
    if finding.id not in _SAVINGS or finding.fix is None or not 0 < saved < missing:
        return finding
    still = format_size(missing - saved)
    return replace(finding, fix=f"{finding.fix}; not enough alone: {still} more are missing")
