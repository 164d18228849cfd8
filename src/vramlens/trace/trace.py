"""A Trace: everything that a recording tells, as columns. Analyses take it; nothing here judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramlens.trace.device import DeviceTrace
from vramlens.trace.measurements import Ledgers, Samples
from vramlens.trace.meta import Meta
from vramlens.trace.profile import ProfilerTrace
from vramlens.trace.stacks import Stacks
from vramlens.trace.storage_facts import AllocationFacts, Owners, TensorNames


@dataclass(frozen=True, eq=False)
class Annotations:
    """Marks in time that the program or PyTorch set (``record_function``, optimizers, NCCL).

    Attributes:
        name: text ids.
        starts: True where a region begins, False where it ends.
        device: the device that was current, -1 where unknown.
        time_us: microseconds since the epoch, on the clock of the events.
    """

    name: NDArray[np.uint32]
    starts: NDArray[np.bool_]
    device: NDArray[np.int32]
    time_us: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, slots=True)
class SideColumn:
    """A field that vramlens has no column for: kept, by row, as plain Python values.

    Attributes:
        table: the table whose rows it belongs to (events, segments, blocks, frames, annotations, or
            top).
        name: the field's name in the file.
        rows: rows of that table, as the file orders them.
        values: one value a row; None where it is too large to be shown.
    """

    table: str
    name: str
    rows: NDArray[np.int64]
    values: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Trace:
    """One recording.

    Attributes:
        source: the file's name as it was given.
        stacks: every stack and text.
        devices: by device index; those without events but with memory are there too.
        host: pinned host memory (PyTorch 2.14 and newer), one entry a list of the file.
        annotations: marks in time.
        pools: pairs of numbers, one row a memory pool; (0, 0) is the default pool.
        settings: the allocator's settings as the file gives them; empty where it does not.
        missing: what the file does not hold although a whole one would, one sentence each.
        side_columns: unknown fields, kept.
        torch_version, device_name: where the recording says so, else None.
        total_bytes: the device's memory by device, where the recording says so.
        meta: what a recording that vramlens made says about itself; empty elsewhere.
        names, ledgers, samples, owners: what such a recording holds beside the snapshot; None
            elsewhere.
        members: the parts of the ``.vram`` file, by name; empty for a bare snapshot.
        start: the state when recording began, without events, where a ``.vram`` file holds it.
        profile: the trace of PyTorch's profiler that this was made from, or that ran beside it;
            else None.
        facts: by device, what that says of each allocation; empty where the stacks have to.
    """

    source: str
    stacks: Stacks
    devices: Mapping[int, DeviceTrace]
    host: tuple[DeviceTrace, ...]
    annotations: Annotations
    pools: NDArray[np.int64]
    settings: Mapping[str, Any]
    missing: tuple[str, ...]
    side_columns: tuple[SideColumn, ...] = ()
    torch_version: str | None = None
    device_name: str | None = None
    total_bytes: Mapping[int, int] = field(default_factory=dict)
    meta: Meta = field(default_factory=Meta)
    names: TensorNames | None = None
    ledgers: Ledgers | None = None
    samples: Samples | None = None
    owners: Owners | None = None
    members: tuple[str, ...] = ()
    start: Trace | None = field(default=None, repr=False)
    profile: ProfilerTrace | None = field(default=None, repr=False)
    facts: Mapping[int, AllocationFacts] = field(default_factory=dict, repr=False)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing

    @property
    def is_profiler_trace(self) -> bool:
        """Whether it was made from a trace of PyTorch's profiler."""
        return bool(self.facts)

    @property
    def main_device(self) -> int | None:
        """The device with the highest requested peak; None when there is no device."""
        if not self.devices:
            return None
        return max(
            self.devices, key=lambda index: (self.devices[index].requested.peak_bytes, -index)
        )
