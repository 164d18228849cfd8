"""Ledgers as they were measured in the program: where all of each device's memory was, at three
moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vramlens.ground.ledger_kinds import LedgerRow


@dataclass(frozen=True, slots=True)
class DeviceLedger:
    """Where a device's memory was; the parts sum to ``total_bytes``."""

    total_bytes: int
    parts: tuple[LedgerRow, ...]


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
