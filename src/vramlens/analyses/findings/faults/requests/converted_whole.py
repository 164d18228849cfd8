"""A tensor that is kept in a narrow type, and converted to a wider one as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.faults.expressions.uses.expression_uses import MUCH
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_CONVERTS = re.compile(
    r"\.(?:float|double|half|bfloat16|long|int|type)\(|\.to\(.*\btorch\.(?:float|bfloat|int)\w*|dtype\s*="
    r"|/\s*25[56]|\*\s*1\.0"
)
_ASSIGNED = re.compile(r"^(?:[\w.]+\s*=(?!=)|return)\s*(?P<value>.+)")
_TIMES = (2, 4, 8)
"""As wide as the narrow type."""
_LEAST_SHARE = 0.5
"""Of what is in use, that the tensor has."""
_PASSES = 4
"""That began since it was made: a batch is used in fewer."""
_MOST_SAMPLES = 4096
"""Of a batch."""


@after_failure
def converted_whole(scene: Scene) -> Iterator[Finding]:
    """The request for the wide form of the largest tensor in use, if that is no batch."""
    request = scene.ending_request
    if request.size_bytes < MUCH * scene.wanted_bytes:
        return
    if not _CONVERTS.search(scene.ending_expression):
        return
    rows, sizes = scene.advice_rows, scene.device.allocations.requested_bytes
    row = scene.device.allocations.largest_of(rows) if len(rows) else -1
    if row < 0 or sizes[row] < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    is_wide_form = any(request.size_bytes == times * sizes[row] for times in _TIMES)
    if not is_wide_form or not _is_kept_whole(scene) or _may_be_batch(scene, row):
        return
    times, size = request.size_bytes // int(sizes[row]), format_size(int(sizes[row]))
    yield Finding(
        id="converted_whole",
        verdict=Verdict.LIKELY,
        title=f"A tensor of {size} is converted as a whole, to a type that is {times} times as"
        f" wide: {format_size(request.size_bytes)} at once",
        bytes=request.size_bytes,
        place=scene.failed_place,
        evidence=(f"the request is exactly {times} times as large as the largest tensor in use",),
        fix="keep it as it is, and convert the rows that are used at a time, x[index].float(),"
        f" where only some are (up to {format_size(request.size_bytes)} less)",
    )


def _is_kept_whole(scene: Scene) -> bool:
    """Whether the statement assigns what it converts, and hands it to no other call: that may need all rows."""
    assigned = _ASSIGNED.match(scene.source_of(scene.failed_place))
    return assigned is not None and assigned["value"].startswith(scene.ending_expression)


def _may_be_batch(scene: Scene, row: int) -> bool:
    """Whether a tensor may be what one step is given, or makes; or a model's."""
    if scene.view.modules.marked[row] or row in scene.view.names.of_kind(TensorKind.PARAMETER):
        return True
    born, shape = scene.device.allocations.born[row], scene.advice_shapes.get(row)
    if int((scene.pass_begins > born).sum()) >= _PASSES:
        return False
    return shape is None or not shape.sizes or shape.sizes[0] <= _MOST_SAMPLES
