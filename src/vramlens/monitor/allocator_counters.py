"""What PyTorch's counters of this process mean: which devices it uses, the room that is left, the
peak of late. No GPU is asked.
"""

from __future__ import annotations

from typing import Any

from vramlens.capture.torch_api import Counters, counters
from vramlens.ground.program_errors import let_through


def used_devices(cuda: Any) -> list[int]:
    """The devices on which PyTorch of this process holds memory."""
    try:
        count = int(cuda.device_count())
    except Exception as error:
        let_through(error)
        return []
    devices = []
    for index in range(count):
        now = counters(cuda, index)
        if now is not None and now.reserved_bytes:
            devices.append(index)
    return devices


def room_bytes(
    cuda: Any, index: int, now: Counters, free_bytes: int | None, peak_bytes: int
) -> int | None:
    """The bytes that this process can still allocate at its worst moment: free on the device, and
    cached beyond its peak.

    Args:
        free_bytes: free on the device, as the driver says.
        peak_bytes: the most that has lately been allocated at a time.
    """
    if free_bytes is None:
        return None
    room = free_bytes + now.reserved_bytes - max(peak_bytes, now.allocated_bytes)
    try:
        fraction = float(cuda.get_per_process_memory_fraction(index))
        if fraction < 1:
            limit = int(cuda.get_device_properties(index).total_memory * fraction)
            room = min(room, limit - max(peak_bytes, now.allocated_bytes))
    except Exception as error:  # PyTorch before 2.8 has no getter: no limit is known
        let_through(error)
        return max(0, room)
    return max(0, room)


class RecentPeak:
    """The most that has lately been allocated at a time: within steps, where samples do not look.

    The allocator's peak counter knows it while it rises. It also remembers a spike of long ago
    (loading a model, say): where it has not risen for a minute of samples, what the samples saw
    counts.
    """

    def __init__(self, kept: int = 60) -> None:
        self._kept = kept
        self._seen: list[tuple[int, int]] = []

    def add(self, now: Counters) -> int:
        """Notes a sample; the peak of late, in bytes."""
        self._seen.append((now.peak_bytes, now.allocated_bytes))
        del self._seen[: -self._kept]
        if self._seen[0][0] < now.peak_bytes:
            return now.peak_bytes
        return max(allocated for _, allocated in self._seen)
