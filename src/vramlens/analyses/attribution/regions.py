"""Regions: the ``record_function`` names under which memory was asked for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vramlens.trace import DeviceTrace, Trace

# PyTorch's own marks, and a profiler's: they name no region of the user's.
_NOT_REGIONS = re.compile(
    r"^(?:Optimizer\.|ProfilerStep#|vramlens\.step|autograd::|nccl:|gloo:|c10d::)"
)
NO_REGION = -1


def regions_of(trace: Trace, device: DeviceTrace) -> NDArray[np.int64]:
    """The innermost region in which each allocation was asked for: a text id, NO_REGION where there
    is none.

    Regions are marks in time, set by any thread of the process; on another thread's allocations
    they are a guess.
    """
    notes = trace.annotations
    chosen = _marks_of_regions(trace, device)
    born = device.allocations.born
    region = np.full(len(born), NO_REGION, np.int64)
    if not len(chosen) or not len(device.events):
        return region
    chosen = chosen[np.argsort(notes.time_us[chosen], kind="stable")]
    innermost = _innermost_after(notes.name[chosen].tolist(), notes.starts[chosen].tolist())
    recorded = born >= 0
    when = device.clock_us[born[recorded]]
    region[recorded] = innermost[np.searchsorted(notes.time_us[chosen], when, side="right")]
    return region


def _marks_of_regions(trace: Trace, device: DeviceTrace) -> NDArray[np.int64]:
    notes = trace.annotations
    chosen = np.flatnonzero(np.isin(notes.device, (device.device, -1)))
    names = {i: trace.stacks.strings[i] for i in np.unique(notes.name[chosen]).tolist()}
    region_names = [i for i, name in names.items() if name and not _NOT_REGIONS.match(name)]
    return chosen[np.isin(notes.name[chosen], region_names)]


def _innermost_after(names: Sequence[int], starts: Sequence[bool]) -> NDArray[np.int64]:
    """The innermost open region before the first mark and after each."""
    # The innermost is last; a closed one goes when it comes to the top.
    open_regions: list[int] = []
    closed_below: Counter[int] = Counter()
    open_count: Counter[int] = Counter()
    innermost = np.full(len(names) + 1, NO_REGION, np.int64)
    for place, (name, is_start) in enumerate(zip(names, starts, strict=True), 1):
        if is_start:
            open_regions.append(name)
            open_count[name] += 1
        elif open_count[name]:  # the latest of that name; regions of two threads may cross
            open_count[name] -= 1
            closed_below[name] += 1
        while open_regions and closed_below[open_regions[-1]]:
            closed_below[open_regions.pop()] -= 1
        innermost[place] = open_regions[-1] if open_regions else NO_REGION
    return innermost
