"""A recording and a profiler's trace of the same run as one: the recording's memory, to the byte and
by line, with the trace's kernels below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vramlens.trace import Trace

_APART_US = 5_000_000
"""How far the clocks of the two may be apart."""


def joined(recordings: Sequence[Trace]) -> list[Trace]:
    """One recording in the place of a recording and a trace of the same time; else what was given.

    Both tell time since the epoch (a trace from PyTorch 2.4 on), so kernels lie where they ran.
    """
    traces = [recording for recording in recordings if recording.is_profiler_trace]
    without_profile = [recording for recording in recordings if not recording.is_profiler_trace]
    if (
        len(traces) != 1
        or len(without_profile) != 1
        or not _is_same_time(without_profile[0], traces[0])
    ):
        return list(recordings)
    return [replace(without_profile[0], profile=traces[0].profile)]


def _is_same_time(recording: Trace, trace: Trace) -> bool:
    first, second = _times(recording), _times(trace)
    if first is None or second is None:
        return False
    return first[0] <= second[1] + _APART_US and second[0] <= first[1] + _APART_US


def _times(recording: Trace) -> tuple[int, int] | None:
    """The first and the last event's time; None where there is none."""
    clocks = [device.clock_us for device in recording.devices.values() if len(device.events)]
    if not clocks:
        return None
    return min(int(clock[0]) for clock in clocks), max(int(clock[-1]) for clock in clocks)
