"""Memory that no tensor holds and PyTorch's allocator does not know: libraries, contexts, other
processes.
"""

from __future__ import annotations

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.leaks.sampled_growth import outside_growth
from vramlens.ground.verdict import Verdict
from vramlens.leak.fixes import fix_of_class
from vramlens.trace import Trace
from vramlens.trace.measurements import DeviceLedger
from vramlens.units import MIB, format_size

_LEAST_CONTEXT = 100 * MIB
"""A CUDA context takes 300 to 800 MB; what a driver notes for a process without one takes a few."""


def external_leak(view: Attribution) -> list[RecordedLeak]:
    """What grew outside PyTorch's allocator, as samples of the whole run show it; and contexts
    that nothing uses.
    """
    contexts = stray_contexts(view.trace, view.device.device)
    growth = outside_growth(view)
    if growth is None:
        return contexts
    rate_bytes = round(growth.per_unit_bytes)
    by_step = growth.unit == "step"
    return [
        *contexts,
        RecordedLeak(
            verdict=Verdict.POSSIBLE,
            kind="external",
            bytes_per_step=rate_bytes if by_step else 0,
            bytes=growth.bytes,
            steps=growth.last - growth.first if by_step else 0,
            fix=fix_of_class("external"),
            device=view.device.device,
            reason="another process on this GPU looks the same (check with nvidia-smi)",
            evidence=(
                "memory that is neither free nor reserved by PyTorch grew by "
                f"{format_size(rate_bytes)} per {growth.unit} ({growth.unit}s {growth.first:,} to "
                f"{growth.last:,} of the samples)",
            ),
        ),
    ]


def stray_contexts(trace: Trace, device: int) -> list[RecordedLeak]:
    """Memory of this process on devices on which PyTorch asked for nothing, as the recording
    measured it at its end.

    Args:
        device: the one that is looked at: it must be in use, and the others are said beside it.
    """
    if trace.ledgers is None or trace.main_device != device:
        return []
    leaks = []
    for index, ledger in sorted(trace.ledgers.end.items()):
        size_bytes = context_bytes(trace, index, ledger)
        if index == device or size_bytes < _LEAST_CONTEXT:
            continue
        leaks.append(
            RecordedLeak(
                verdict=Verdict.POSSIBLE,
                kind="context",
                bytes_per_step=0,
                bytes=size_bytes,
                steps=0,
                fix=fix_of_class("context"),
                device=index,
                reason="it does not grow and may be intended",
                evidence=(
                    f"this process has {format_size(size_bytes)} on device {index}, and PyTorch "
                    "has nothing there: this is a CUDA context, created by a call that named that "
                    "device or no device",
                ),
            )
        )
    return leaks


def context_bytes(trace: Trace, device: int, ledger: DeviceLedger) -> int:
    """The bytes that this process surely has on a device of which PyTorch asked for nothing; else 0."""
    parts = {part.kind: part for part in ledger.parts}
    own_part = parts.get("this_process_other")
    in_pytorch = sum(
        parts[kind].bytes for kind in ("pytorch_allocated", "pytorch_cached") if kind in parts
    )
    used = device in trace.devices and len(trace.devices[device].events) > 0
    if used or in_pytorch or own_part is None or own_part.confidence != "exact":
        return 0
    return own_part.bytes
