"""Growing memory: the leaks that events show, and the growth that only samples show."""

from __future__ import annotations

from collections.abc import Iterator

from vramlens.analyses.finding import Finding
from vramlens.analyses.leaks.leaks import leak_finding
from vramlens.analyses.leaks.sampled_growth import sampled_growth
from vramlens.analyses.scene import Scene


def leaks(scene: Scene) -> Iterator[Finding]:
    """Each leak that is large enough to matter, with when the memory will be full."""
    for leak in scene.growth:
        if not leak.is_small:
            yield leak_finding(leak, scene.prediction)


def growth_in_samples(scene: Scene) -> Iterator[Finding]:
    """The growth that samples of the whole run show and events cannot."""
    yield from sampled_growth(
        scene.view, scene.growth, scene.outside, failed=scene.is_ended_by_failure
    )
