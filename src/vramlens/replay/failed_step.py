"""What is known of the step whose failure ended a recording, with each setting: the word of
``vramlens explain``, which ``vramlens tune`` and ``vramlens replay`` follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vramlens.analyses.attribution.attribution import attribute
from vramlens.analyses.failure.step_evidence import leaks_of_steps
from vramlens.analyses.recording_explanation import explain_trace
from vramlens.ground.vocabulary import Cause
from vramlens.replay.explained import with_replay
from vramlens.replay.what_if import question

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.analyses.explanation import Explanation
    from vramlens.analyses.failure.need import LimitAdvice, SettingVerdict
    from vramlens.replay.proof import Proven, ReserveLimit
    from vramlens.replay.settings import Settings
    from vramlens.trace import Trace


@dataclass(frozen=True, slots=True)
class FailedStep:
    """The step that failed.

    Attributes:
        judged: explain's verdicts, by setting, in its order.
        needs_too_much: whether more must be alive at once than the limit allows, so that it fails
            with any setting.
        limit: what to allow the process, as explain advises; None where it says nothing of that.
        leaked_per_step: what each step leaves behind, where that is why it failed; None elsewhere.
        capacity_bytes: the most that the process could reserve; None where nothing bounds it.
    """

    judged: dict[Settings, SettingVerdict]
    needs_too_much: bool = False
    limit: LimitAdvice | None = None
    leaked_per_step: int | None = None
    capacity_bytes: int | None = None

    def finishes(self, settings: Settings) -> bool | None:
        """Whether the step finishes with a setting; None where that cannot be told."""
        verdict = self.judged.get(settings)
        lives = None if verdict is None else verdict.lives
        return False if lives is None and self.needs_too_much else lives

    def peak_bytes(self, settings: Settings) -> int | None:
        """What the whole step reserves with a setting; None unless it finishes with it."""
        verdict = self.judged.get(settings)
        return verdict.peak_reserved_bytes if verdict is not None and verdict.lives else None

    def advice(self, past_failure: Sequence[Settings]) -> Settings | None:
        """The setting to use, else the one that may be enough; None where there is none.

        Args:
            past_failure: the settings that get past the failed request, the best first.
        """
        carrying = [settings for settings, row in self.judged.items() if row.lives]
        undecided = [
            settings
            for settings, row in self.judged.items()
            if row.lives is None and row.past_failure
        ]
        may_finish: list[Settings] = []
        if all(row.lives is None for row in self.judged.values()):  # else explain looked at all
            may_finish = [settings for settings in past_failure if self.finishes(settings) is None]
        return next(iter([*carrying, *undecided, *may_finish]), None)


def failed_step_under(
    trace: Trace, proven: Proven, cap_bytes: int | None, recorded_cap_bytes: int | None
) -> FailedStep:
    """What explain knows of the failure that ended the recording; of another limit it knows only
    that a leak fills that, too.
    """
    if not proven.ended_by_failure:
        return FailedStep({})
    failed_step = failed_step_of(trace, proven, recorded_cap_bytes)
    if cap_bytes is None or cap_bytes == proven.recorded.limit.bytes:
        return failed_step
    return FailedStep({}, leaked_per_step=failed_step.leaked_per_step)


def failed_step_of(trace: Trace, proven: Proven, recorded_cap_bytes: int | None) -> FailedStep:
    """What ``vramlens explain`` knows of the failure that ended the recording."""
    view = attribute(trace, proven.device)
    explanation = explain_trace(trace, device=proven.device.device, view=view)
    if explanation.oom is not None and recorded_cap_bytes is not None:
        verdict = replace(explanation.oom, limit_bytes=recorded_cap_bytes)
        explanation = replace(explanation, oom=verdict)
    explanation = with_replay(explanation, trace, view=view)
    if explanation.oom is None:
        return FailedStep({})
    need, limit = explanation.oom.need, explanation.oom.limit
    floor = need.floor_bytes if need is not None else None
    capacity = _capacity_bytes(proven.recorded.limit, limit)
    return FailedStep(
        judged={question(proven, row.conf).settings: row for row in explanation.oom.settings},
        needs_too_much=floor is not None and capacity is not None and floor > capacity,
        limit=limit,
        capacity_bytes=capacity,
        leaked_per_step=_leaked_per_step(explanation, view),
    )


def _capacity_bytes(limit: ReserveLimit, advice: LimitAdvice | None) -> int | None:
    """The most that the process could reserve; None where nothing bounds it.

    Of a full device explain may know more than what was refused there.
    """
    if limit.of_device and advice is not None and advice.most_bytes is not None:
        return advice.most_bytes
    return limit.most_bytes


def _leaked_per_step(explanation: Explanation, view: Attribution) -> int | None:
    if explanation.oom is None or explanation.oom.cause != Cause.LEAK:
        return None
    leaks = leaks_of_steps(view, explanation.leaks)
    return sum(leak.bytes_per_step for leak in leaks if leak.sure) or None
