"""Bands: the regions that a program marked, as spans under the picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from vramlens.trace import DeviceTrace, Trace
from vramlens.view.columns import Columns
from vramlens.view.texts import Texts

_DEEPEST = 8


def bands_of(trace: Trace, device: DeviceTrace, start_us: int, columns: Columns, texts: Texts) -> dict[str, Any]:
    """Spans of marked regions: begin and end in microseconds after the first event, a name, and how deep each lies."""
    notes = trace.annotations
    rows = np.flatnonzero(np.isin(notes.device, (device.device, -1)))
    rows = rows[np.argsort(notes.time_us[rows], kind="stable")]
    last_us = max(int(device.clock_us[-1]) - start_us, 0) if len(device.events) else 0
    spans: list[tuple[int, int, int, int]] = []
    open_: list[tuple[int, int]] = []
    times = np.clip(notes.time_us[rows] - start_us, 0, last_us).tolist()
    for time, name, starts in zip(times, notes.name[rows].tolist(), notes.starts[rows].tolist(), strict=True):
        if starts:
            open_.append((name, time))
            continue
        # The latest of that name: regions of several threads may cross. One that began before is not known.
        depth = next((depth for depth in range(len(open_) - 1, -1, -1) if open_[depth][0] == name), None)
        if depth is not None:
            spans.append((open_.pop(depth)[1], time, name, min(depth, _DEEPEST)))
    spans += [(began, last_us, name, min(depth, _DEEPEST)) for depth, (name, began) in enumerate(open_)]
    spans.sort()
    known = {name: texts.number(trace.stacks.strings[name]) for name in {span[2] for span in spans}}
    table = np.array([(begin, end, known[name], depth) for begin, end, name, depth in spans], np.int64).reshape(-1, 4)
    return {
        "n": len(table),
        "begin": columns.add(table[:, 0], differences=True),
        "end": columns.add(table[:, 1], differences=True),
        "name": columns.add(table[:, 2]),
        "depth": columns.add(table[:, 3]),
    }
