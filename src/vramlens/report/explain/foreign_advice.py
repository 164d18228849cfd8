"""What comes next after a failure outside PyTorch, whose memory no recording of ``vramlens run``
shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens.analyses.error_text.libraries import FOREIGN, OUTSIDE_FIXES
from vramlens.report.document import Command

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation

_FOREIGN = frozenset(OUTSIDE_FIXES[kind][0] for kind in FOREIGN)
_MPS = "print(torch.mps.current_allocated_memory(), torch.mps.driver_allocated_memory())  # bytes"


def step_for_others(explanation: Explanation) -> Command | None:
    """The next step after an error's text that is not PyTorch's CUDA allocator's; None where
    other advice holds.
    """
    if explanation.peak is not None:
        return None
    if any(finding.id in _FOREIGN for finding in explanation.findings):
        return Command("see which processes use the GPU's memory now", ("vramlens top --once",))
    if any("PYTORCH_MPS_" in (finding.fix or "") for finding in explanation.findings):
        return Command(
            "paste this before the failing line to see what PyTorch and Metal hold", (_MPS,)
        )
    return None
