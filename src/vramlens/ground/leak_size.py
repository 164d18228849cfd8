"""From what size on a leak matters: one threshold for live reports and for recordings.

It needs nothing: a live report is also made in programs without NumPy.
"""

from __future__ import annotations

LIFE_STEPS = 100_000
"""A run lasts so many steps, or as many as were recorded: pretraining and fine-tuning jobs take
up to some 100,000.
"""
LEAST_SHARE = 0.01
"""What takes less than this of a device in a run's life, and of the peak so far, is not worth a
line above others.
"""
SMALLEST_DEVICE_BYTES = 8 << 30
"""Where the recording does not say how large the device is, it is no smaller than this, nor than
what was reserved.
"""


def least_bytes_per_step(total_bytes: int | None, reserved_bytes: int, steps: int) -> int:
    """From how many bytes per step on a leak matters on a device.

    Args:
        total_bytes: what the process may reserve there; None where unknown.
        reserved_bytes: the most that it did.
        steps: how many were recorded.
    """
    device_bytes = total_bytes or max(SMALLEST_DEVICE_BYTES, reserved_bytes)
    return max(1, int(LEAST_SHARE * device_bytes / max(LIFE_STEPS, steps)))
