"""What was measured in the program beside its events: ledgers, where all of each device's memory was
at three moments; and samples, the counters now and then over a whole run, which outlast the ring of
events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from vramlens.ground.vocabulary import LedgerRow

UNKNOWN = -1
"""In a column: not known."""


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process on a device, as the driver lists it.

    Attributes:
        pid: its number, as the driver counts.
        bytes: what it has there.
        is_recorded: whether it is the recorded program.
    """

    pid: int
    bytes: int
    is_recorded: bool


@dataclass(frozen=True, slots=True)
class DeviceLedger:
    """Where a device's memory was; the parts sum to ``total_bytes``. ``processes`` are those whose
    size the driver knew.
    """

    total_bytes: int
    parts: tuple[LedgerRow, ...]
    processes: tuple[DeviceProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Ledgers:
    """By device, at three moments; empty where that was not measured.

    Attributes:
        start: when recording began.
        peak: at the highest moment that a sample met.
        end: when the recording was written.
        host: by moment, figures of the host's memory.
    """

    start: Mapping[int, DeviceLedger] = field(default_factory=dict)
    peak: Mapping[int, DeviceLedger] = field(default_factory=dict)
    end: Mapping[int, DeviceLedger] = field(default_factory=dict)
    host: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Samples:
    """One row a sample, in order of time.

    Attributes:
        interval_s: the time between two samples that was aimed at; None where unknown.
        time_us: microseconds since the epoch.
        step, device: numbers, from 0.
        allocated_bytes, reserved_bytes: the allocator's counters.
        free_bytes: of the device, as the driver says.
        host_rss_bytes: the process's memory on the host.
    """

    interval_s: float | None
    time_us: NDArray[np.int64]
    step: NDArray[np.int64]
    device: NDArray[np.int64]
    allocated_bytes: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64]
    free_bytes: NDArray[np.int64]
    host_rss_bytes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.time_us)

    def of(self, device: int) -> Samples:
        """The samples of one device."""
        of_device = self.device == device
        columns = [getattr(self, field.name) for field in fields(self)[1:]]
        return Samples(self.interval_s, *(column[of_device] for column in columns))
