"""The need of a run of which all is known: it went on after its failure, or it was predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vramlens._layout import AddressOrder, Completion
from vramlens.analyses.failure.need import ADVICE, WHOLE_RUN, Need, SettingVerdict
from vramlens.ground.verdict import Confidence
from vramlens.replay.need.continued_step import without_refusals
from vramlens.replay.need.step_need import ORDERS
from vramlens.replay.what_if import ask, question

if TYPE_CHECKING:
    from vramlens._native import Replay
    from vramlens.replay.proof import Proven
    from vramlens.trace import Meta


def need_of_whole_run(proven: Proven) -> Need:
    """What the recorded run needs without a limit: at least what it was served, at most what was
    refused beside that.
    """
    native = proven.native()
    served = proven.replay_of(without_refusals(proven.requests.columns) or proven.requests.columns)
    peaks = [_peak(served, native, order) for order in ORDERS]
    with_refused = [_peak(proven.replay, native, order) for order in ORDERS]
    return Need(
        peak_reserved_bytes=peaks[0],
        low_bytes=min(peaks),
        high_bytes=max(*peaks, *with_refused),
        basis=WHOLE_RUN,
        done_share=1.0,
        confidence=Confidence.BOUNDED,
        floor_bytes=proven.device.requested.peak_bytes,
    )


def need_of_predicted_run(meta: Meta) -> Need | None:
    """What the run needs whose predicted failure this is; None of a recorded one."""
    run = meta.whole_run
    if run is None:
        return None
    return Need(
        peak_reserved_bytes=None if run.high_bytes is None else run.peak_reserved_bytes,
        low_bytes=run.low_bytes,
        high_bytes=run.high_bytes,
        basis=WHOLE_RUN,
        floor_bytes=run.floor_bytes,
    )


def settings_of_whole_run(proven: Proven) -> tuple[SettingVerdict, ...]:
    """A verdict on the run under each of the common settings, all of its requests known."""
    rows = ask(proven, [question(proven, conf) for conf in ADVICE])
    return tuple(
        SettingVerdict(
            conf=conf,
            lives=None if row.oom is None else not row.oom,
            dies_after_bytes=None,
            confidence=row.confidence,
            peak_reserved_bytes=row.peak_reserved_bytes,
            failed_bytes=row.failed_bytes if row.oom else None,
        )
        for conf, row in zip(ADVICE, rows, strict=True)
    )


def _peak(replay: Replay, native: dict[str, object], order: AddressOrder) -> int:
    _, curve = replay.curve(native, addresses=order, completion=Completion.RECORDED, seed=0)
    return int(np.max(curve["reserved"], initial=0))
