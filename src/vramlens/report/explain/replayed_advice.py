"""What comes after a failure whose settings were replayed already: asking again which setting
helps tells nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens.report.document import Command
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation, OomVerdict


def step_after_replay(explanation: Explanation) -> Command | None:
    """The next step where settings were replayed and none got past the failure; None where other
    advice holds.
    """
    oom = explanation.failure
    if oom is None or oom.cause != "fragmentation" or explanation.peak is None:
        return None
    ids = {finding.id for finding in explanation.findings}
    if ids & {"settings_help", "settings_may_help"} or "settings_do_not_help" not in ids:
        return None
    size = format_size(oom.requested_bytes or oom.tried_bytes or 0)
    why = (
        f"allocate the {size} first, or {_larger_limit(oom)}, and record again (none of the "
        "replayed settings helps)"
    )
    return Command(why, ("vramlens run -o again.vram YOUR_SCRIPT.py",))


def _larger_limit(oom: OomVerdict) -> str:
    is_own_limit = oom.wall == "process_limit"
    if oom.reserved_bytes is None:
        return "raise the limit" if is_own_limit else "use a larger card"
    size = format_size(oom.reserved_bytes + (oom.tried_bytes or oom.requested_bytes or 0))
    return f"raise the limit to {size}" if is_own_limit else f"use a larger card, with {size}"
