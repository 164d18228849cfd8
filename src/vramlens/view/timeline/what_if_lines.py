"""What-if lines: what the run would have reserved over its events under other allocator
settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vramlens.report.wording import visible
from vramlens.view.texts import words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vramlens.replay import Answer, Curve, WhatIf
    from vramlens.trace import Trace
    from vramlens.view.columns import Columns

_MOST_STEPS = 1 << 14
"""Of one line; the shared recordings' have up to some hundred."""


def lines_of(
    trace: Trace, device: int, confs: Sequence[str], columns: Columns
) -> list[dict[str, Any]]:
    """One line a setting: its steps, its peak and bounds, what it comes to in words, and where the
    program would die.

    Raises:
        UsageError: PyTorch would refuse the settings.
        InputError: the recording cannot be replayed.
    """
    if not confs:
        return []
    from vramlens.replay import replay_trace

    answer = replay_trace(trace, confs=confs, device=device, curves=True)
    return [
        _line(answer, row, conf, columns) for conf, row in zip(confs, answer.what_if, strict=True)
    ]


def _line(answer: Answer, row: WhatIf, conf: str, columns: Columns) -> dict[str, Any]:
    assert row.curve is not None
    event, reserved, changes = steps_of(row.curve, _MOST_STEPS)
    return {
        "conf": visible(conf) or "PyTorch's default",
        "reserved": row.peak_reserved_bytes,
        "low": row.low_bytes,
        "high": row.high_bytes,
        "confidence": row.confidence,
        "oom": row.oom,
        "died": row.curve.died_event,
        "words": words(_answer_words(answer, row)),
        "changes": changes,
        "event": columns.add(event + 1, differences=True),
        "bytes": columns.add(np.maximum(reserved, 0), differences=True),
    }


def steps_of(curve: Curve, most: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Events and bytes of at most ``most`` steps, and how many changes each stands for.

    Where there are more changes than that, each step is the highest of some that follow each other:
    the line is never too low, and what a step reaches is really reserved somewhere within it.
    """
    changes = max(1, -(-len(curve.event) // most))
    first = np.arange(0, len(curve.event), changes)
    return curve.event[first], np.maximum.reduceat(curve.reserved_bytes, first), changes


def _answer_words(answer: Answer, row: WhatIf) -> str:
    """What ``vramlens replay`` says of a setting, with how sure that is."""
    from vramlens.report.replay.story import best_headline, size_range

    headline = best_headline(answer, [row]).removesuffix(".")
    if row.confidence == "exact":
        return f"{headline} (exact)."
    between = f"{size_range(row)} reserved at its peak" if row.low_bytes != row.high_bytes else ""
    return f"{headline}. {row.confidence.capitalize()}: {'; '.join((*filter(None, (between,)), *row.why))}."
