"""TensorBoard: memory by step as ten scalars, beside the losses.

``peak/requested_gib``, ``peak/allocated_gib`` and ``peak/reserved_gib`` are each counter's highest
within the step; ``category/…_gib`` is what the requested bytes are made of at the step's highest,
and adds up to it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.errors import InputError, UsageError
from vramlens.export.curves import curves_of, running
from vramlens.trace import Counter
from vramlens.units import GIB
from vramlens.whole_file import whole_file

FILE = "events.out.tfevents.vramlens"
"""What TensorBoard takes for a file of events is named so; a later export takes its place."""
_VERSION = "brain.Event:2"
_COUNTERS = ("requested", "allocated", "reserved")


def step_scalars(view: Attribution) -> dict[str, NDArray[np.int64]]:
    """Bytes by scalar, one a step.

    Raises:
        InputError: the recording has no steps.
    """
    steps, device = view.steps, view.device
    if not len(steps):
        raise InputError(
            f"{view.trace.source}: no steps in it, and TensorBoard counts in steps: call"
            " vramlens.step() after each"
        )
    curves = curves_of(device)
    scalars = {}
    for name in _COUNTERS:
        curve = curves[name]
        before = np.where(
            steps.starts > 0, curve[steps.starts - 1], getattr(device, name).base_bytes
        )
        scalars[f"peak/{name}_gib"] = np.maximum(np.maximum.reduceat(curve, steps.starts), before)
    peaks = _fullest(curves["requested"], steps.starts, steps.ends, device.requested.base_bytes)
    rows, category = device.allocations, view.categories.category
    for kind in Category:
        sizes = np.where(category == kind, rows.requested_bytes, 0)
        old = int(sizes[rows.born < 0].sum())
        live_bytes = running(device, Counter(old, 0, 0), rows.died, sizes)
        scalars[f"category/{kind.name.lower()}_gib"] = np.where(peaks >= 0, live_bytes[peaks], old)
    return scalars


def _fullest(
    curve: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64], base_bytes: int
) -> NDArray[np.int64]:
    """The first event of each step at which most is requested; the one before it where it only
    falls from there.
    """
    fullest_events = np.zeros(len(starts), np.int64)
    for step, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        event = start + int(curve[start:end].argmax())
        before = int(curve[start - 1]) if start else base_bytes
        fullest_events[step] = event if int(curve[event]) >= before else start - 1
    return fullest_events


def write_tensorboard(view: Attribution, folder: str) -> int:
    """Writes a log folder of TensorBoard, or the scalars into one that is there; gives the number
    of steps.

    Raises:
        InputError: the recording has no steps.
        UsageError: TensorBoard is not installed.
        OSError: the folder cannot be written.
    """
    scalars = step_scalars(view)
    try:
        record_writer: Any = import_module("tensorboard.summary.writer.record_writer")
        event_pb2: Any = import_module("tensorboard.compat.proto.event_pb2")
        summary_pb2: Any = import_module("tensorboard.compat.proto.summary_pb2")
    except ImportError:
        raise UsageError(
            "TensorBoard is not installed: pip install 'vramlens[tensorboard]'"
        ) from None
    ends_s = (view.device.clock_us[np.maximum(view.steps.ends - 1, 0)] / 1e6).tolist()
    os.makedirs(folder, exist_ok=True)
    with whole_file(os.path.join(folder, FILE)) as out:
        records = record_writer.RecordWriter(out)
        records.write(
            event_pb2.Event(wall_time=ends_s[0], file_version=_VERSION).SerializeToString()
        )
        for step, end_s in enumerate(ends_s):
            values = [
                summary_pb2.Summary.Value(tag=name, simple_value=int(sizes[step]) / GIB)
                for name, sizes in scalars.items()
            ]
            summary = summary_pb2.Summary(value=values)
            records.write(
                event_pb2.Event(wall_time=end_s, step=step, summary=summary).SerializeToString()
            )
    return len(ends_s)
