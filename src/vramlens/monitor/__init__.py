"""The monitor: memory of GPUs and programs while they run, of this program (``Monitor``) or of
the machine.

sampler: ``Monitor``, a thread that reads counters.
monitor_samples: its samples.
summary: them in a few lines.
step_growth: what steps leave behind.
step_pace: how long steps take, and clock times.
place_in_job: machine, job and rank.
allocator_counters: what the counters of PyTorch mean.
scalars: what experiment trackers get, and how.
publisher: the thread that tells ``vramlens top``.
alerts: rules, when they fire, and what firing does.
machine: every GPU and the processes on it, now.
top: the screen of ``vramlens top``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramlens.monitor.alerts.alerts import Alert
    from vramlens.monitor.sampler import Monitor
    from vramlens.monitor.summary import DeviceSummary, Summary

__all__ = ["Alert", "DeviceSummary", "Monitor", "Summary"]

# Imported when asked for: every program under vramlens imports the publisher, few a monitor.
_HOMES = {
    "Alert": "alerts.alerts",
    "DeviceSummary": "summary",
    "Monitor": "sampler",
    "Summary": "summary",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
