"""Regions of a recording: what the program and PyTorch marked, each from its beginning to its
end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vramlens.trace import DeviceTrace, Trace

BACKENDS = ("nccl:", "gloo:", "mpi:", "ucc:", "xccl:", "hccl:")
"""How a process group's backend begins the names of its calls (``profilingTitle`` in c10d's
ProcessGroup*.cpp).
"""
LONGEST_US = 1 << 52
"""Some 140 years: what a recording says beyond that is not a time."""
_MOST_CROSSED = 1000
"""Regions that may have begun after the one that ends: in a file that no program wrote there could
be any number.
"""


@dataclass(frozen=True, slots=True)
class Region:
    """A marked stretch of time.

    Attributes:
        name: as it was marked.
        begin_us: since the epoch.
        end_us: since the epoch; None for one that never ended.
        depth: in how many others it lies.
    """

    name: str
    begin_us: int
    end_us: int | None
    depth: int


def regions_of(trace: Trace, device: DeviceTrace, *, collectives: bool) -> list[Region]:
    """Regions on a device, in order of their beginning.

    Args:
        collectives: those that calls of a process group mark (``nccl:all_reduce``); else all
            others.
    """
    notes, strings = trace.annotations, trace.stacks.strings
    texts = np.unique(notes.name)
    wanted_texts = texts[[is_collective(strings[text]) == collectives for text in texts.tolist()]]
    rows = np.flatnonzero(
        np.isin(notes.device, (device.device, -1)) & np.isin(notes.name, wanted_texts)
    )
    rows = rows[np.argsort(notes.time_us[rows], kind="stable")]
    regions: list[Region] = []
    open_: list[tuple[int, int]] = []
    columns = (notes.time_us[rows].tolist(), notes.name[rows].tolist(), notes.starts[rows].tolist())
    for time, name, starts in zip(*columns, strict=True):
        if starts:
            open_.append((name, time))
            continue
        # The latest of that name: regions of several threads may cross. One that began before is
        # not known.
        depths = range(len(open_) - 1, max(-1, len(open_) - 1 - _MOST_CROSSED), -1)
        depth = next((depth for depth in depths if open_[depth][0] == name), None)
        if depth is not None:
            regions.append(Region(strings[name], open_.pop(depth)[1], time, depth))
    regions += [
        Region(strings[name], began, None, depth) for depth, (name, began) in enumerate(open_)
    ]
    return sorted(regions, key=lambda region: (region.begin_us, region.depth))


def is_collective(name: str) -> bool:
    """Whether a region's name is that of a process group's call."""
    return name.startswith(BACKENDS)
