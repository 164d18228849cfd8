"""What a failed step keeps that the earlier step had given back by the same request: layers that
are trained from now on, gradients that are enabled, results that are collected.

The earlier step then says what is asked for next, and too little of what stays.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.failure.first_step.first_step_need import GRADIENTS_BESIDE
from vramlens.analyses.failure.step_template import Template
from vramlens.units import format_size

_TELLING = 0.02
"""Of what is alive: less is a buffer that is given back a little later. It is 0 in 40 of 42 failed
steps, and half and more in the two that unfreeze layers.
"""
_MODULE_DEPTH = 2
_MOST_MODULES = 2


@dataclass(frozen=True, slots=True)
class KeptLonger:
    """Memory that the earlier step had given back by the failed request.

    Attributes:
        bytes: how much of it is kept now.
        bytes_to_come: the most that the rest of the step may keep beside what the earlier step
            shows: what that gave back before its backward pass, and gradients.
        modules: where most of it was computed, by module; empty where modules are not marked.
    """

    bytes: int
    bytes_to_come: int
    modules: tuple[str, ...]

    @property
    def words(self) -> str:
        """Why this step needs more, in one sentence."""
        where = f" (in {' and '.join(self.modules)})" if self.modules else ""
        return (
            f"this step keeps {format_size(self.bytes)} that earlier steps had freed by this"
            f" request{where}: more of the model is trained now, or results are collected"
        )


def kept_longer(view: Attribution, template: Template) -> KeptLonger | None:
    """What is kept for longer than in the template; None where it is nothing that matters."""
    allocations, failed_event = view.device.allocations, template.failed.end
    sizes = allocations.requested_bytes
    template_event = int(allocations.born[template.span.rows[template.position]])
    theirs, ours = template.pairs
    is_kept = (allocations.died[theirs] < template_event) & (allocations.died[ours] >= failed_event)
    kept_rows = ours[is_kept]
    kept_bytes = int(sizes[kept_rows].sum())
    if kept_bytes <= _TELLING * int(sizes[allocations.alive_after(failed_event)].sum()):
        return None
    given_back = _given_back_by_rest_of_pass(view, template)
    to_come = given_back + int(GRADIENTS_BESIDE * (kept_bytes + given_back))
    return KeptLonger(kept_bytes, to_come, _modules_of(view, kept_rows))


def _given_back_by_rest_of_pass(view: Attribution, template: Template) -> int:
    """What the template asked for after the failed request and gave back before its backward
    pass.
    """
    allocations, later = view.device.allocations, template.span.rows[template.position :]
    is_backward = view.phases.phase[later] == Phase.BACKWARD
    end = int(allocations.born[later[is_backward]][0]) if is_backward.any() else template.span.end
    is_given_back = (allocations.born[later] < end) & (allocations.died[later] < end)
    return int(allocations.requested_bytes[later[is_given_back]].sum())


def _modules_of(view: Attribution, rows: NDArray[np.int64]) -> tuple[str, ...]:
    """The modules that asked for most of it, by the first names of their paths."""
    bytes_of: Counter[str] = Counter()
    paths = view.modules.paths
    sizes = view.device.allocations.requested_bytes
    for row in rows[view.modules.module[rows] >= 0].tolist():
        path = paths[view.modules.module[row]]
        bytes_of[".".join(path.split(".")[:_MODULE_DEPTH])] += int(sizes[row])
    return tuple(sorted(path for path, _ in bytes_of.most_common(_MOST_MODULES)))
