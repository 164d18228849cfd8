"""Memory that the run reserved beyond what its peak needed."""

from __future__ import annotations

from collections.abc import Iterator

from vramlens.analyses.extent import Extent
from vramlens.analyses.failure.oom import settings_variable
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.ranking import LEAST_SHARE
from vramlens.analyses.memory.fragmentation import (
    Fragmentation,
    Pin,
    fragmentation_at,
    holes_at,
)
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import Trace
from vramlens.units import MIB, counted, format_size

_UNUSED_SHARE = 0.2
_LEAST_BYTES = 64 * MIB


def unused_reserve(scene: Scene) -> Iterator[Finding]:
    """What a run that lived reserved and never used, when it is much."""
    reserved_bytes = scene.device.reserved.peak_bytes
    active_bytes = scene.device.active.peak_bytes
    unused = reserved_bytes - active_bytes
    is_much = unused >= max(_LEAST_BYTES, _UNUSED_SHARE * reserved_bytes)
    if not is_much or scene.device.out_of_memory:
        return
    event = scene.device.reserved.peak_event
    holes = fragmentation_at(scene.view, event)
    releasable = format_size(holes.releasable_bytes)
    evidence = [
        f"peak: {format_size(reserved_bytes)} reserved and {format_size(active_bytes)} used",
        f"then {counted(holes.holes, 'free block')}, the largest "
        f"{format_size(holes.largest_free_bytes)}; {releasable} in whole free segments",
    ]
    pin = _pin_that_matters(holes, reserved_bytes)
    if pin is not None and pin.place is not None:
        evidence.append(
            f"{counted(pin.blocks, 'block')} of {pin.place} split up "
            f"{format_size(pin.held_bytes)} of it"
        )
    yield Finding(
        id="unused_reserve",
        verdict=Verdict.PROVEN,
        title=f"{format_size(unused)} more was reserved than the peak needed",
        bytes=unused,
        place=pin.place if pin else None,
        evidence=tuple(evidence),
        fix=_fix(scene.trace, holes, unused),
        extent=Extent(event, holes=holes_at(scene.device, event).ranges),
    )


def _pin_that_matters(holes: Fragmentation, reserved_bytes: int) -> Pin | None:
    """The line whose blocks keep most free memory; None where that is next to nothing of the peak."""
    pin = holes.pinned_by[0] if holes.pinned_by else None
    return pin if pin is not None and pin.held_bytes >= LEAST_SHARE * reserved_bytes else None


def _fix(trace: Trace, holes: Fragmentation, unused_bytes: int) -> str:
    if trace.settings.get("expandable_segments"):
        return (
            "call torch.cuda.empty_cache() after the peak: it returns free segments to the driver"
            f" ({format_size(holes.releasable_bytes)})"
        )
    return (
        f"run with {settings_variable(trace)}=expandable_segments:True and record again: this "
        f"often helps (up to {format_size(unused_bytes)}, not proven)"
    )
