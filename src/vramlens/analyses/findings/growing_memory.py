"""Growing memory: the leaks that events show, and the growth that only samples show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.leaks.recorded_leaks import leak_finding
from vramlens.analyses.leaks.sampled_growth import sampled_growth
from vramlens.analyses.scene import Scene


def leaks(scene: Scene) -> Iterator[Finding]:
    """Each leak that is large enough to matter, with when the memory will be full."""
    for leak in scene.growth:
        if not leak.is_small:
            yield replace(leak_finding(leak, scene.prediction), extent=_extent(scene, leak))


def _extent(scene: Scene, leak: RecordedLeak) -> Extent | None:
    """What the leak held when it was judged; None for memory outside of PyTorch."""
    if leak.rows is None or not len(leak.rows):
        return None
    fullest_event, _ = scene.device.allocations.fullest(leak.rows)
    failed_event = scene.failed_event if scene.is_ended_by_failure else None
    return Extent(fullest_event if failed_event is None else failed_event, leak.rows)


def growth_in_samples(scene: Scene) -> Iterator[Finding]:
    """The growth that samples of the whole run show and events cannot."""
    yield from sampled_growth(
        scene.view, scene.growth, scene.outside, failed=scene.is_ended_by_failure
    )
