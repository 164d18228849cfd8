"""PyTorch's segments without history: what is free in them, and which tensors keep them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vramlens.capture.names.tensor_names import NamedTensor

Segments = Sequence[Mapping[str, Any]]
_MOST_PINNING = 8
_LIVE = ("active_allocated", "active_awaiting_free", "active_pending_free")


def segments_summary(segments: Segments, names: Iterable[NamedTensor]) -> list[dict[str, Any]]:
    """For each device: reserved and free bytes, the largest free block, and the tensors that
    keep segments with free room from going back to the driver.

    Args:
        segments: of ``torch.cuda.memory_snapshot``.
        names: of tensors on these devices.
    """
    devices: dict[int, list[Mapping[str, Any]]] = {}
    for segment in segments:
        devices.setdefault(int(segment["device"]), []).append(segment)
    named = _Names(names)
    return [_of_device(device, devices[device], named) for device in sorted(devices)]


class _Names:
    """Names by address."""

    def __init__(self, names: Iterable[NamedTensor]) -> None:
        self._tensors = sorted(names, key=lambda tensor: (tensor.device, tensor.address))
        self._places = [(tensor.device, tensor.address) for tensor in self._tensors]

    def within(self, device: int, address: int, size: int) -> str | None:
        """The name of the first tensor that begins in a block."""
        place = bisect_right(self._places, (device, address - 1))
        if place == len(self._places):
            return None
        found_device, found_address = self._places[place]
        if found_device != device or found_address >= address + size:
            return None
        return self._tensors[place].name


def _of_device(device: int, segments: Segments, names: _Names) -> dict[str, Any]:
    free_bytes = largest_free_bytes = allocated_bytes = 0
    pinning: list[dict[str, Any]] = []
    for segment in segments:
        free_in_segment = 0
        live: list[tuple[int, int]] = []
        address = int(segment["address"])
        for block in segment.get("blocks", ()):
            size = int(block["size"])
            if block["state"] in _LIVE:
                live.append((int(block.get("address", address)), size))
                allocated_bytes += size
            else:
                free_in_segment += size
                largest_free_bytes = max(largest_free_bytes, size)
            address += size
        free_bytes += free_in_segment
        if live and free_in_segment:
            pinning.append(_pinned(device, free_in_segment, live, names))
    pinning.sort(key=lambda row: -row["free_bytes"])
    return {
        "device": device,
        "segments": len(segments),
        "reserved_bytes": sum(int(segment["total_size"]) for segment in segments),
        "allocated_bytes": allocated_bytes,
        "free_bytes": free_bytes,
        "largest_free_bytes": largest_free_bytes,
        "pinned_by": pinning[:_MOST_PINNING],
    }


def _pinned(
    device: int, free_bytes: int, live: list[tuple[int, int]], names: _Names
) -> dict[str, Any]:
    """A segment that has free room and cannot go back: its live blocks, the largest by name."""
    by_size = sorted(live, key=lambda block: -block[1])
    texts = [names.within(device, address, size) for address, size in by_size[:_MOST_PINNING]]
    return {
        "free_bytes": free_bytes,
        "live_bytes": sum(size for _, size in live),
        "blocks": len(live),
        "names": [text for text in texts if text is not None],
    }
