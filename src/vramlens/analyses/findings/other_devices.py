"""Other devices: memory that is perhaps there by mistake."""

from __future__ import annotations

from collections.abc import Iterator

from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import DeviceTrace
from vramlens.units import MIB, format_size

_STRAY_BYTES = 512 * MIB
_STRAY_ALLOCATIONS = 16


def other_devices(scene: Scene) -> Iterator[Finding]:
    """Devices that hold a little and do nothing, and so were perhaps not meant."""
    meant = scene.device.device
    for device in scene.trace.devices.values():
        if device is scene.device or not _is_stray(device):
            continue
        size = format_size(device.reserved.peak_bytes)
        requested = format_size(device.requested.peak_bytes)
        yield Finding(
            id="other_device",
            verdict=Verdict.POSSIBLE,
            title=f"This process also uses {size} on device {device.device}, in addition to "
            f"device {meant}",
            bytes=device.reserved.peak_bytes,
            evidence=(f"{requested} of it requested; the CUDA context adds to that",),
            fix=f"call torch.cuda.set_device({meant}) before the first CUDA call, and pass the "
            f"device where tensors are created ({size} and a context on device {device.device})",
        )


def _is_stray(device: DeviceTrace) -> bool:
    is_little = 0 < device.reserved.peak_bytes <= _STRAY_BYTES
    return is_little and len(device.allocations) <= _STRAY_ALLOCATIONS
