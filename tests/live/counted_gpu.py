"""A GPU that is none, for what only counters show: the figures are set by hand, in the shapes
that PyTorch gives.
"""

from __future__ import annotations

from typing import Any

from vramlens.live.counters.gpu_memory import Counts, OutsideBytes, Pinned

MIB = 1 << 20


class CountedGpu:
    """Stands in for ``vramlens.live.counters.gpu_memory.ProcessGpus``. What is not said by hand stays as
    it is: a quiet, warm process.
    """

    def __init__(self, devices: int = 1) -> None:
        self.allocated = [100 * MIB] * devices
        self.waits = [0] * devices
        self.reserved = [200 * MIB if device == 0 else 0 for device in range(devices)]
        self.beside = [500 * MIB] * devices
        self.is_own = True
        self.used = [0]
        self.handed_out = self.kept = 8 * MIB
        self.groups = 1
        self.parts: list[dict[str, Any]] | None = [segment(200, 100)]
        self.asked = 0

    def contexts(self) -> tuple[int, ...]:
        return tuple(self.used)

    def current(self) -> int:
        return 0

    def counts(self, device: int) -> Counts:
        self.asked += 1
        live = self.allocated[device]
        held = live + self.waits[device]
        return Counts(held, live, held, self.reserved[device])

    def pinned(self) -> Pinned:
        return Pinned(self.handed_out, self.kept)

    def segments(self) -> list[dict[str, Any]] | None:
        return self.parts

    def outside(self, device: int) -> OutsideBytes:
        return OutsideBytes(self.beside[device], self.is_own)

    def process_groups(self) -> int:
        return self.groups

    def reserve(
        self, size_mib: int, *, stream: int = 0, pool: tuple[int, int] = (0, 0), active_mib: int = 0
    ) -> None:
        """A new segment."""
        self.reserved[0] += size_mib * MIB
        if self.parts is not None:
            self.parts.append(segment(size_mib, active_mib, stream, pool))


def segment(
    size_mib: int, active_mib: int, stream: int = 0, pool: tuple[int, int] = (0, 0)
) -> dict[str, Any]:
    """One of ``torch.cuda.memory_snapshot()``, as far as it is read."""
    return {
        "device": 0,
        "stream": stream,
        "segment_pool_id": pool,
        "total_size": size_mib * MIB,
        "active_size": active_mib * MIB,
    }
