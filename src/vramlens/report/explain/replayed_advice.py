"""What comes after a failure whose settings were replayed already: asking again which setting
helps tells nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens.report.explain.advice import NextStep
from vramlens.units import format_size

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation


def step_after_replay(explanation: Explanation) -> NextStep | None:
    """The next step where settings were replayed and none got past the failure; None where other
    advice holds.
    """
    oom = explanation.oom
    found = {finding.id: finding for finding in explanation.findings}
    if oom is None or oom.survived or oom.cause != "fragmentation" or explanation.peak is None:
        return None
    if found.keys() & {"settings_help", "settings_may_help"} or "settings_do_not_help" not in found:
        return None
    size = format_size(oom.requested_bytes or oom.tried_bytes or 0)
    limit = "raise the limit" if oom.wall == "process_limit" else "use a larger card"
    if oom.reserved_bytes is not None:
        limit += (
            f" to {format_size(oom.reserved_bytes + (oom.tried_bytes or oom.requested_bytes or 0))}"
        )
        limit = limit.replace("card to", "card, with")
    why = (
        f"allocate the {size} first, or {limit}, and record again (none of the replayed "
        "settings helps)"
    )
    return NextStep(why, ("vramlens run -o again.vram YOUR_SCRIPT.py",))
