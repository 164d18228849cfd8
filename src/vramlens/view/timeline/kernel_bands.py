"""Kernels of a profiler's trace as one band under its regions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vramlens.trace import DeviceTrace, Trace
from vramlens.trace.profile import DEVICE_KINDS
from vramlens.view.texts import Texts

MOST_KERNELS = 100_000
"""Of more, the longest are drawn: the others are shorter than a pixel at most zooms."""


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
