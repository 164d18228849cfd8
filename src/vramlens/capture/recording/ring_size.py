"""The number of events that a recording may keep: bounded by the host memory that they take."""

from __future__ import annotations

from vramlens.units import GIB

EVENT_BYTES = 512
"""Host memory of one recorded event with its Python stack; measured 360 to 390 on an H100 with
stacks of 30 frames.
"""

_LARGEST_RING_BYTES = GIB
_SHARE_OF_RAM = 50
_FEWEST = 10_000


def default_max_events(devices: int, ram_bytes: int | None = None) -> int:
    """Events that each device's ring may hold: together 1 GiB or a fiftieth of the machine's
    memory, if that is less.

    Args:
        devices: how many rings this process may fill.
        ram_bytes: the machine's memory; asked for where not given.
    """
    ram = _ram_bytes() if ram_bytes is None else ram_bytes
    room = min(_LARGEST_RING_BYTES, ram // _SHARE_OF_RAM) if ram else _LARGEST_RING_BYTES
    return max(_FEWEST, room // EVENT_BYTES // max(1, devices))


def _ram_bytes() -> int:
    from vramlens.capture.memory.memory_now import host_memory

    return host_memory().total_bytes or 0  # the container's, where that has less
