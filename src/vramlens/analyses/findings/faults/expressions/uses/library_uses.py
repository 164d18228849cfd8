"""What functions of libraries make more of than may be needed, by the frame that asked for it."""

from __future__ import annotations

from vramlens.analyses.findings.faults.expressions.uses.expression_uses import (
    ExpressionUse,
    of_call,
)
from vramlens.analyses.scene import Scene

_USES = (
    of_call(
        r"torchaudio[/\\].*:_get_sinc_resample_kernel$",
        "makes a filter for each of the new rate's samples, as the two rates have no large common"
        " divisor",
        "resample to rates that have one: round the new rate to a multiple of a hundredth of the"
        " sample rate, or draw it from a few such rates",
        stays=True,
    ),
    of_call(
        r"torchvision[/\\]ops[/\\]boxes\.py:",
        "makes a bit for each pair of boxes",
        "drop the boxes below the score threshold first (they suppress none above it), or keep the"
        " best few thousand by torch.topk of the scores",
    ),
)
"""By ``file:function`` of a frame."""


def use_of_library(scene: Scene) -> ExpressionUse | None:
    """What the failed request was for, where such a function asked for it."""
    frames = scene.trace.stacks.of(scene.ending_request.stack)
    places = [f"{frame.file}:{frame.function}" for frame in frames]
    return next((use for use in _USES if any(map(use.call.search, places))), None)
