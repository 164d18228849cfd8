"""How much a leak has to be to matter: by the device that it fills, and by how long a run lasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vramlens.analyses.leaks.growth import Leak
from vramlens.ground.verdict import Verdict
from vramlens.units import GIB

LIFE_STEPS = 100_000
"""A run lasts so many steps, or as many as were recorded: pretraining and fine-tuning jobs take
up to some 100,000.
"""
LEAST_SHARE = 0.01
"""What takes less than this of a device in a run's life, and of the peak so far, is not worth a
line above others.
"""
SMALLEST_DEVICE_BYTES = 8 * GIB
"""Where the recording does not say how large the device is, it is no smaller than this, nor than
what was reserved.
"""


def least_bytes_per_step(total_bytes: int | None, reserved_bytes: int, steps: int) -> int:
    """From how many bytes a step on a leak matters on a device.

    Args:
        total_bytes: what the process may reserve there; None where unknown.
        reserved_bytes: the most that it did.
        steps: how many were recorded.
    """
    device_bytes = total_bytes or max(SMALLEST_DEVICE_BYTES, reserved_bytes)
    return max(1, int(LEAST_SHARE * device_bytes / max(LIFE_STEPS, steps)))


def sized(leaks: Sequence[Leak], least_bytes: int, peak_bytes: int | None) -> tuple[Leak, ...]:
    """The leaks, those that are too small to matter marked and last.

    Args:
        least_bytes: what a step has to leave behind to matter.
        peak_bytes: the run's requested peak: what is a hundredth of it matters already; None where
            only the rate does.
    """
    marked = [replace(leak, is_small=_is_small(leak, least_bytes, peak_bytes)) for leak in leaks]
    return tuple(sorted(marked, key=lambda leak: leak.is_small))


def _is_small(leak: Leak, least_bytes: int, peak_bytes: int | None) -> bool:
    if not leak.bytes_per_step or leak.verdict == Verdict.NOT_A_PROBLEM:
        return False
    if max(leak.bytes_per_step, leak.taken_per_step) >= least_bytes:
        return False
    return peak_bytes is None or leak.bytes < LEAST_SHARE * peak_bytes
