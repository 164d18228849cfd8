"""The rest of the pass under way, where nobody knows what follows it: what a failed step needs at
least, and which settings surely do not carry it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens.analyses.failure.step_scaling import scaling_of
from vramlens.analyses.failure.step_template import template_of_part
from vramlens.replay.need.continued_step import Continuation
from vramlens.replay.need.step_need import Projection

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.replay.proof import Proven
    from vramlens.trace import OutOfMemory


def rest_of_pass(view: Attribution, proven: Proven, request: OutOfMemory) -> Projection | None:
    """The failed pass, or block of a pass, to its end as an earlier one of the same size went on; None
    where there is none.
    """
    template = template_of_part(view, request)
    if template is None:
        return None
    scaling = scaling_of(view, template, request)
    if not scaling.is_same:
        return None
    return Projection(
        template=template,
        scaling=scaling,
        continued=Continuation(view, proven, template, scaling).finished(0),
        unseen_bytes=0,
        kept_longer=None,
        of_steps=False,
        earlier_bytes=0,
        refused_bytes=0,
    )
