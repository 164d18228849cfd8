"""What-if lines: what the run would have reserved at most under other allocator settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vramlens.report.wording import visible

if TYPE_CHECKING:
    from vramlens.trace import Trace


def lines_of(trace: Trace, device: int, confs: Sequence[str]) -> list[dict[str, Any]]:
    """One line a setting: the peak of reserved bytes, its bounds, how sure it is, and where the program would die.

    Raises:
        UsageError: PyTorch would refuse the settings.
        InputError: the recording cannot be replayed.
    """
    if not confs:
        return []
    from vramlens.replay import replay_trace

    answer = replay_trace(trace, confs=confs, device=device)
    return [
        {
            "conf": visible(conf) or "PyTorch's default",
            "reserved": row.peak_reserved_bytes,
            "low": row.low_bytes,
            "high": row.high_bytes,
            "confidence": row.confidence,
            "oom_event": row.oom_event,
            "oom": row.oom,
        }
        for conf, row in zip(confs, answer.what_if, strict=True)
    ]
