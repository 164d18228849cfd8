"""Bands: the regions that a program marked, and the kernels of a profiler's trace, as spans under the
picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from vramlens.trace import DeviceTrace, Trace
from vramlens.trace.profile import DEVICE_KINDS
from vramlens.view.columns import Columns
from vramlens.view.texts import Texts
from vramlens.view.timeline.marked_regions import LONGEST_US, regions_of

_DEEPEST = 8
MOST_KERNELS = 100_000
"""Of more, the longest are drawn: the others are shorter than a pixel at most zooms."""


def bands_of(
    trace: Trace, device: DeviceTrace, start_us: int, columns: Columns, texts: Texts
) -> dict[str, Any]:
    """Spans of marked regions: begin and end in microseconds after the first event, a name, and how
    deep each lies.

    Calls of process groups are not among them: they have a band of their own (``collective_calls.py``).
    """
    last_us = (
        min(max(int(device.clock_us[-1]) - start_us, 0), LONGEST_US) if len(device.events) else 0
    )
    regions = regions_of(trace, device, collectives=False)
    spans = [
        (
            min(max(region.begin_us - start_us, 0), last_us),
            last_us if region.end_us is None else min(max(region.end_us - start_us, 0), last_us),
            texts.number(region.name),
            min(region.depth, _DEEPEST),
        )
        for region in regions
    ]
    below = min(1 + max((region.depth for region in regions), default=-1), _DEEPEST)
    spans += [
        (min(max(begin, 0), last_us), min(max(end, 0), last_us), name, depth)
        for begin, end, name, depth in kernel_spans(trace, device, start_us, below, texts)
    ]
    table = np.array(sorted(spans, key=lambda span: (span[0], span[3])), np.int64).reshape(-1, 4)
    return {
        "n": len(table),
        "begin": columns.add(table[:, 0], differences=True),
        "end": columns.add(table[:, 1], differences=True),
        "name": columns.add(table[:, 2]),
        "depth": columns.add(table[:, 3]),
    }


def kernel_spans(
    trace: Trace, device: DeviceTrace, start_us: int, depth: int, texts: Texts
) -> Iterator[tuple[int, int, int, int]]:
    """Yields beginning and end in microseconds after the first event, name and depth of each kernel,
    copy and fill on a device, in order of time; none without a profiler's trace.
    """
    profile = trace.profile
    if profile is None:
        return
    spans = profile.spans
    rows = spans.of(DEVICE_KINDS)
    rows = rows[spans.device[rows] == device.device]
    if len(rows) > MOST_KERNELS:
        lasted = spans.end_ns[rows] - spans.start_ns[rows]
        rows = np.sort(rows[np.argsort(-lasted, kind="stable")[:MOST_KERNELS]])
    base_us = profile.began_us - start_us
    columns = (spans.start_ns[rows], spans.end_ns[rows], spans.name[rows])
    for start_ns, end_ns, name in zip(*(column.tolist() for column in columns), strict=True):
        number = texts.number(profile.names[name])
        yield start_ns // 1000 + base_us, end_ns // 1000 + base_us, number, depth
