"""The covariance of all points that a Gaussian process is asked about with each other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

_PREDICTION = re.compile(r"[/\\]gpytorch[/\\]models[/\\]exact_(?:gp|prediction_strategies)\.py")
_OF_TRAINING = re.compile(
    r"[/\\]gpytorch[/\\]mlls[/\\]|:(?:mean_cache|covar_cache|lik_train_train_covar)$"
)
"""Of the points that it has learned from, which no part of the others makes fewer."""
_FEWEST_POINTS = 2_048
_ITEM_BYTES = (4, 8)


@after_failure
def joint_covariance(scene: Scene) -> Iterator[Finding]:
    """The request of gpytorch that memory ran out in, if it is for as many numbers as points have pairs."""
    request = scene.ending_request
    frames = scene.trace.stacks.of(request.stack)
    calls = [f"{frame.file}:{frame.function}" for frame in frames]
    if not any(map(_PREDICTION.search, calls)) or any(map(_OF_TRAINING.search, calls)):
        return
    points = next(filter(None, (_points(request.size_bytes, width) for width in _ITEM_BYTES)), None)
    if points is None:
        return
    yield Finding(
        id="joint_covariance",
        verdict=Verdict.LIKELY,
        title=f"gpytorch computes the covariance of {points:,} points with each other:"
        f" {format_size(request.size_bytes)} at once",
        bytes=request.size_bytes,
        place=scene.failed_place,
        evidence=("memory ran out in it, in the model's prediction",),
        fix="if only means and variances are used, compute a part of the points at a time: for"
        " part in points.split(1024): posterior = model(part), and keep posterior.mean and"
        f" posterior.variance (at least {format_size(request.size_bytes)} less)",
        recurs=True,
    )


def _points(size_bytes: int, item_bytes: int) -> int | None:
    """The number of points whose pairs fill that many bytes; None where they are no square, or few."""
    pairs = size_bytes // item_bytes
    points = math.isqrt(pairs)
    return points if points**2 == pairs and points >= _FEWEST_POINTS else None
