"""PyTorch's history of events, as its snapshots hold it."""

from __future__ import annotations

from typing import Any


def leave_out_before(snapshot: dict[str, Any], since_us: int) -> None:
    """Drops a snapshot's events from before a moment (microseconds since the epoch), in place."""
    snapshot["device_traces"] = [
        [event for event in events if event.get("time_us", since_us) >= since_us]
        for events in snapshot.get("device_traces", ())
    ]
