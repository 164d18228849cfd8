"""Memory on further devices than the one that is looked at: often a tensor or a context put
there by mistake.
"""

from __future__ import annotations

from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.trace import DeviceTrace, Trace
from vramlens.units import MIB, format_size

_STRAY_BYTES = 512 * MIB
_STRAY_ALLOCATIONS = 16


def other_devices(trace: Trace, chosen: DeviceTrace) -> list[Finding]:
    """Devices that hold a little and do nothing, and so were perhaps not meant."""
    found = []
    for device in trace.devices.values():
        held = device.reserved.peak_bytes
        busy = len(device.allocations) > _STRAY_ALLOCATIONS
        if device is chosen or not held or held > _STRAY_BYTES or busy:
            continue
        found.append(
            Finding(
                id="other_device",
                verdict=Verdict.POSSIBLE,
                title=f"This process also holds {format_size(held)} on device {device.device}, beside device "
                f"{chosen.device}",
                bytes=held,
                evidence=(
                    f"{format_size(device.requested.peak_bytes)} of it requested; its CUDA context comes on top",
                ),
                fix=f"call torch.cuda.set_device({chosen.device}) before the first CUDA call, and name the device "
                f"where tensors are made ({format_size(held)} and a context on device {device.device})",
            )
        )
    return found
