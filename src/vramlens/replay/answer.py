"""``vramlens replay``: the proof, and what each of some settings would have led to."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramlens.analyses.failure.oom import settings_variable
from vramlens.analyses.recording_explanation import needed_device
from vramlens.errors import InputError
from vramlens.ground.printed_answer import PrintedAnswer
from vramlens.replay.proof import Proven, Recorded, prove
from vramlens.replay.what_if import WhatIf, ask, question

if TYPE_CHECKING:
    from vramlens.replay.failed_step import FailedStep
    from vramlens.trace import Trace

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, repr=False)
class Answer(PrintedAnswer):
    """What a replay tells.

    Attributes:
        source: the recording's name.
        device: the device's index.
        recorded: the proof.
        what_if: one row a setting.
        ended_by_failure: whether the recorded run ended with a failed request.
        variable: the environment variable to set.
        places: by event of a first failure, the user's line that asked.
        missing: what the recording does not hold, one sentence each.
        failed_step: what is known of the step whose failure ended the recording; None where no
            setting gets past that.
    """

    source: str
    device: int
    recorded: Recorded
    what_if: tuple[WhatIf, ...]
    ended_by_failure: bool
    variable: str
    places: dict[int, str]
    missing: tuple[str, ...]
    failed_step: FailedStep | None = None

    def step_finishes(self, row: WhatIf) -> bool | None:
        """Whether the step that failed finishes with a setting that gets past the failed request, as
        ``vramlens explain`` says; None where that cannot be told.
        """
        if self.failed_step is None or not row.past_failure:
            return None
        return self.failed_step.finishes(row.settings)


def replay_trace(
    trace: Trace,
    *,
    confs: Sequence[str] = (),
    cap_bytes: int | None = None,
    recorded_cap_bytes: int | None = None,
    device: int | None = None,
    curves: bool = False,
) -> Answer:
    """The proof and the what-ifs of one device.

    Args:
        confs: settings to try; none: the recorded ones.
        cap_bytes: what the process may reserve in them; None: what it could when it was recorded.
        recorded_cap_bytes: what it could when it was recorded, where the recording does not say.
        device: by default the one with the highest requested peak.
        curves: whether each what-if has its curve.

    Raises:
        InputError: the recording cannot be replayed, or the cap lies below what was there at its
            start.
        UsageError: it has no such device, or PyTorch would refuse the settings.
    """
    proven = proven_device(trace, device, recorded_cap_bytes)
    questions = [question(proven, conf, cap_bytes) for conf in (confs or (None,))]
    rows = ask(proven, questions, curves=curves)
    return Answer(
        source=trace.source,
        device=proven.device.device,
        recorded=proven.recorded,
        what_if=tuple(rows),
        ended_by_failure=proven.ended_by_failure,
        variable=settings_variable(trace),
        places=places_of(trace, proven, rows),
        missing=missing_of(trace),
        failed_step=_failed_step(trace, proven, rows, cap_bytes, recorded_cap_bytes),
    )


def _failed_step(
    trace: Trace,
    proven: Proven,
    rows: Sequence[WhatIf],
    cap_bytes: int | None,
    recorded_cap_bytes: int | None,
) -> FailedStep | None:
    """What is known of the step that failed, where a setting gets past the failed request."""
    if not any(row.past_failure for row in rows):
        return None
    # Only here: it explains the whole recording, by what this module offers.
    from vramlens.replay.failed_step import failed_step_under

    return failed_step_under(trace, proven, cap_bytes, recorded_cap_bytes)


def missing_of(trace: Trace) -> tuple[str, ...]:
    """What the recording does not hold and a replay would need."""
    unknown = () if trace.settings else ("the allocator's settings: taken as shown",)
    return (*trace.missing, *unknown)


def proven_device(
    trace: Trace, device: int | None, recorded_cap_bytes: int | None = None
) -> Proven:
    """The proof of one device; by default of the one with the highest requested peak."""
    if trace.is_profiler_trace:
        raise InputError(
            f"{trace.source}: is a profiler trace, which has no segments to replay;"
            " vramlens run -o run.vram YOUR_SCRIPT.py records them"
        )
    return prove(trace, needed_device(trace, device), recorded_cap_bytes)


def assignment(variable: str, conf: str) -> str:
    """The variable with the settings, as a shell takes it: ``>`` and ``[`` stand in some
    settings.
    """
    return f"{variable}={shlex.quote(conf)}"


def places_of(trace: Trace, proven: Proven, rows: Sequence[WhatIf]) -> dict[int, str]:
    """By event of a first failure, the user's line that asked; without those that have none."""
    places = {}
    stacks = trace.stacks
    for row in rows:
        if row.oom_event is None:
            continue
        stack = int(proven.device.events.stack[row.oom_event])
        frame = int(stacks.user_frame[stack]) if stack < len(stacks) else -1
        if frame >= 0:
            places[row.oom_event] = str(stacks.frame(frame))
    return places
