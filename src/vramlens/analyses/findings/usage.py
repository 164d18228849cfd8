"""What the peak is made of, as advice: what each usual remedy could save here, roughly."""

from __future__ import annotations

from dataclasses import replace

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.explanation import OomVerdict
from vramlens.analyses.failure.oom import settings_variable
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.leaks.growth import Leak
from vramlens.analyses.memory.fragmentation import fragmentation_at
from vramlens.analyses.memory.heap import Heap
from vramlens.ground.verdict import Verdict
from vramlens.trace.stacks import base_name
from vramlens.units import MIB, counted, format_size

_LARGE_SHARE = 0.25
_UNUSED_SHARE = 0.2
_LEAST_BYTES = 64 * MIB


def activations(
    view: Attribution, heap: Heap, leaks: tuple[Leak, ...], unused_bytes: int = 0
) -> list[Finding]:
    """Activations, when they make up much of the memory; without what merely leaks, or what
    nothing will use.
    """
    held = heap.by_category.get("activations")
    if held is None or not (len(view.phases.span_start) or view.device.out_of_memory):
        return []  # nothing waits for a backward pass where there is none
    size = held.bytes - sum(leak.bytes for leak in leaks) - unused_bytes
    if size < max(_LARGE_SHARE * heap.requested_bytes, MIB, held.bytes // 2):
        return []
    leaking = {leak.place: leak.bytes for leak in leaks}
    lines = [row for row in heap.by_line if row.category == "activations"]
    line = max(lines, key=lambda row: row.bytes - leaking.get(row.place, 0), default=None)
    return [
        Finding(
            id="activations",
            verdict=held.verdict,
            title=f"{_part(size, heap)} are activations kept for the backward pass",
            bytes=size,
            place=line.place if line else None,
            evidence=("they shrink in proportion to the batch and to the size of each input",),
            fix=f"half the batch saves about {format_size(size // 2)}; or torch.utils.checkpoint around the "
            "repeated blocks, or autocast to bfloat16",
        )
    ]


def optimizer_state(heap: Heap) -> list[Finding]:
    """Optimizer state, when it makes up much of the memory."""
    held = heap.by_category.get("optimizer_state")
    if held is None or held.bytes < _LARGE_SHARE * heap.requested_bytes:
        return []
    return [
        Finding(
            id="optimizer_state",
            verdict=held.verdict,
            title=f"{_part(held.bytes, heap)} are optimizer state",
            bytes=held.bytes,
            fix=f"an 8-bit optimizer saves about {format_size(held.bytes * 3 // 4)}; sharding (FSDP, ZeRO-1) "
            "divides it by the number of ranks",
        )
    ]


def largest_line(heap: Heap, failed: OomVerdict, others: list[Finding]) -> list[Finding]:
    """The line that holds most of the memory when what is alive leaves too little room; none
    where others say it.
    """
    line = heap.by_line[0] if heap.by_line else None
    if (
        line is None
        or 2 * line.bytes <= heap.requested_bytes
        or failed.cause not in ("capacity", "spike")
    ):
        return []
    if any(
        one.fix is not None and (one.id == line.category or one.place == line.place)
        for one in others
    ):
        return []
    lone = line.allocations == 1
    size, short = format_size(line.bytes), failed.short_by_bytes
    tensors = "one tensor" if lone else counted(line.allocations, "tensor")
    # Segments are whole pages of 2 MiB: so much less surely gives back what is missing.
    less = format_size(-(-short // (2 * MIB)) * 2 * MIB) if short and short < line.bytes else ""
    enough = f": {less} less {'are' if lone else 'may be'} enough for this request" if less else ""
    return [
        Finding(
            id="largest_line",
            verdict=Verdict.PROVEN,
            title=f"{size} are held by one line, in {tensors}",
            bytes=line.bytes,
            place=line.place,
            evidence=(f"{_part(line.bytes, heap)} of what was alive when the request failed",),
            fix=f"{_short_name(line.place)} holds {size} in {tensors}:"
            f" make {'it smaller or free it' if lone else 'them smaller or free some'}{enough}",
        )
    ]


def _short_name(place: Place) -> str:
    return str(replace(place, file=base_name(place.file) or place.file))


def unused_reserve(view: Attribution) -> list[Finding]:
    """Memory that the run reserved beyond what its peak needed, when it is much."""
    device = view.device
    unused = device.reserved.peak_bytes - device.active.peak_bytes
    if (
        unused < _UNUSED_SHARE * device.reserved.peak_bytes
        or unused < _LEAST_BYTES
        or device.out_of_memory
    ):
        return []
    fragmentation = fragmentation_at(view, device.reserved.peak_event)
    pin = fragmentation.pinned_by[0] if fragmentation.pinned_by else None
    evidence = [
        f"at most {format_size(device.reserved.peak_bytes)} reserved and {format_size(device.active.peak_bytes)} used",
        f"then {counted(fragmentation.holes, 'hole')}, the largest {format_size(fragmentation.largest_free_bytes)}; "
        f"{format_size(fragmentation.releasable_bytes)} in whole free segments",
    ]
    if pin is not None and pin.held_bytes and pin.place is not None:
        evidence.append(
            f"{counted(pin.blocks, 'block')} of {pin.place} keep {format_size(pin.held_bytes)} of it from being used"
        )
    return [
        Finding(
            id="unused_reserve",
            verdict=Verdict.PROVEN,
            title=f"{format_size(unused)} more was reserved than the peak needed",
            bytes=unused,
            place=pin.place if pin else None,
            evidence=tuple(evidence),
            fix=f"run with {settings_variable(view.trace)}=expandable_segments:True and record again: that often "
            f"avoids it (up to {format_size(unused)}, not proven)"
            if not view.trace.settings.get("expandable_segments")
            else "torch.cuda.empty_cache() between phases of different sizes gives back whole free segments "
            f"({format_size(fragmentation.releasable_bytes)})",
        )
    ]


def _part(size: int, heap: Heap) -> str:
    return f"{format_size(size)} ({100 * size / heap.requested_bytes:.0f} %)"
