"""The verdict on a failure that ended a program: what it would have needed, and which settings
carry it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vramlens.analyses.failure.first_step.first_step_need import need_of_first_step
from vramlens.analyses.failure.likeness.left_behind import passes_give_back
from vramlens.analyses.failure.need import ADVICE, Need, SettingVerdict
from vramlens.analyses.failure.step_evidence import may_be_inside_step
from vramlens.ground.verdict import Confidence
from vramlens.replay.need.inert_settings import changes_nothing
from vramlens.replay.need.rest_of_pass import rest_of_pass
from vramlens.replay.need.step_need import Projection, need_of, projection_of, verdict_of_setting
from vramlens.replay.tuning import WORTH_TRYING, simple_first
from vramlens.replay.what_if import WhatIf, ask, question

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.analyses.explanation import OomVerdict
    from vramlens.analyses.leaks.recorded_leak import RecordedLeak
    from vramlens.replay.proof import Proven
    from vramlens.replay.settings import Settings

_RUNS_TO_PROJECT = 10
_RUNS_TO_SEARCH = 24
_RUNS_FOR_MORE, _RUNS_TO_CONFIRM = 120, 60
_CONFIRMED = 3
_CLEARLY = 1.02
_SEVERAL_AND_THE_FAILED = 3


@dataclass(frozen=True, eq=False)
class ReplayJudgement:
    """What replay has to say about a failure.

    Attributes:
        need: what the step would have needed.
        settings: what each setting would have changed, those of ADVICE first.
        projection: the step continued to its end; None where no earlier step is like it.
    """

    need: Need
    settings: tuple[SettingVerdict, ...]
    projection: Projection | None

    @property
    def tells_what_follows(self) -> bool:
        """True where the projected step stands for those after it."""
        return self.projection is not None and self.projection.tells_what_follows

    @property
    def is_like_several_steps(self) -> bool:
        """True where the failed step is as large as an earlier one, of several: one says little of how
        steps differ.
        """
        projection = self.projection
        if projection is None or not projection.scaling.is_same:
            return False
        return len(projection.template.spans) >= _SEVERAL_AND_THE_FAILED


def judgement_of(
    view: Attribution,
    proven: Proven,
    oom: OomVerdict,
    runs: int,
    step_leaks: Sequence[RecordedLeak] = (),
) -> ReplayJudgement:
    """The need of a failure, and what each setting would have made of it.

    Args:
        runs: how often the recording may be replayed: bounds the time.
        step_leaks: what leaks from step to step.
    """
    request = view.device.out_of_memory[-1]
    projection = projection_of(view, proven, request) if runs >= _RUNS_TO_PROJECT else None
    if projection is None:
        judged = _judgement_of_first_step(view, proven, oom, runs)
    else:
        judged = _judgement_by_step(proven, projection, runs)
        is_of_micro_batches = passes_give_back(view, projection.template)
        if may_be_inside_step(view, step_leaks) and not is_of_micro_batches:
            judged = replace(judged, need=_at_least(judged.need))
    if (oom.largest_free_bytes or 0) >= (oom.requested_bytes or 0):
        return judged  # the allocator's own mistake: the limit was enough
    return replace(judged, need=_above_limit(judged.need, proven))


def _at_least(need: Need) -> Need:
    """The need without an upper end: more turns of a loop may follow."""
    return replace(need, peak_reserved_bytes=None, high_bytes=None, limit_bytes=None)


def _above_limit(need: Need, proven: Proven) -> Need:
    """The need, whose range begins no lower than the limit that was not enough."""
    low = max(need.low_bytes, proven.recorded.limit.bytes or 0)
    high = None if need.high_bytes is None else max(need.high_bytes, low)
    return replace(need, low_bytes=low, high_bytes=high)


def _judgement_by_step(proven: Proven, projection: Projection, runs: int) -> ReplayJudgement:
    need = need_of(proven, projection, searching=runs >= _RUNS_TO_SEARCH)
    settings = _verdicts_on(proven, projection, ADVICE)
    if runs >= _RUNS_FOR_MORE and not any(row.lives for row in settings):
        settings += [row for row in _verdicts_on(proven, projection, _others(proven)) if row.lives]
    return ReplayJudgement(need, tuple(settings), projection)


def _judgement_of_first_step(
    view: Attribution, proven: Proven, oom: OomVerdict, runs: int
) -> ReplayJudgement:
    request = view.device.out_of_memory[-1]
    need = need_of_first_step(view, request) or oom.need
    assert need is not None
    projection = rest_of_pass(view, proven, request) if runs >= _RUNS_TO_CONFIRM else None
    if projection is not None:
        need = _with_rest(need, projection)
    settings = _without_projection(proven, need, runs)
    if projection is not None and not proven.recorded.warm:
        settings = [_with_rest_of_pass(row, proven, projection) for row in settings]
    return ReplayJudgement(need, tuple(settings), None)


def _with_rest(need: Need, rest: Projection) -> Need:
    """The need, which is no less than that of the rest of this pass."""
    floor_bytes = rest.continued.floor_bytes
    low = max(need.low_bytes, floor_bytes)
    return replace(
        need,
        low_bytes=low,
        high_bytes=None if need.high_bytes is None else max(need.high_bytes, low),
        floor_bytes=max(need.floor_bytes or 0, floor_bytes),
    )


def _with_rest_of_pass(row: SettingVerdict, proven: Proven, rest: Projection) -> SettingVerdict:
    """What a setting leads to; decided where not even the rest of this pass fits with it."""
    if row.lives is not None:
        return row
    further = verdict_of_setting(proven, rest, _parsed(proven, row.conf))
    return further if further.lives is False else row


def _parsed(proven: Proven, conf: str) -> Settings:
    return question(proven, conf).settings


def _verdicts_on(
    proven: Proven, projection: Projection, confs: Sequence[str]
) -> list[SettingVerdict]:
    """The verdict on each setting, on all cores."""

    def judged(conf: str) -> SettingVerdict:
        settings = _parsed(proven, conf)
        if changes_nothing(proven, settings):
            return _fails_as_recorded(proven, conf)
        verdict = verdict_of_setting(proven, projection, settings)
        if proven.recorded.warm and verdict.lives is not None:
            # Memory from before the recording cannot be moved to where another setting would have
            # put it.
            return SettingVerdict(
                conf=conf,
                lives=None,
                dies_after_bytes=None,
                confidence=Confidence.CONDITIONAL,
                peak_reserved_bytes=0,
            )
        return verdict

    with ThreadPoolExecutor(max_workers=max(1, min(len(confs), os.cpu_count() or 1))) as pool:
        return list(pool.map(judged, confs))


def _fails_as_recorded(proven: Proven, conf: str) -> SettingVerdict:
    return SettingVerdict(
        conf=conf,
        lives=False,
        dies_after_bytes=0,
        confidence=Confidence.EXACT,
        peak_reserved_bytes=proven.recorded.peak_reserved_bytes,
    )


def _without_projection(proven: Proven, need: Need, runs: int) -> list[SettingVerdict]:
    """What each setting does to the recorded requests alone, where the rest of the step is not
    known.
    """
    too_much = _exceeds_limit(need, proven)
    other_confs = [conf for conf in ADVICE if not changes_nothing(proven, _parsed(proven, conf))]
    rows = _asked_of_record(proven, other_confs, runs)
    verdicts = [
        _by_record(conf, rows.get(conf), surely=too_much)
        if conf in other_confs
        else _fails_as_recorded(proven, conf)
        for conf in ADVICE
    ]
    is_past = any(row.past_failure for row in verdicts)
    if rows and not too_much and not is_past and runs >= _RUNS_FOR_MORE:
        verdicts += _others_past_failure(proven)
    return verdicts


def _asked_of_record(proven: Proven, confs: Sequence[str], runs: int) -> dict[str, WhatIf]:
    if runs < 2 * len(ADVICE) or proven.recorded.warm:
        return {}
    return _asked(proven, confs, quick=runs < _RUNS_TO_CONFIRM)


def _exceeds_limit(need: Need, proven: Proven) -> bool:
    capacity = proven.recorded.limit.most_bytes
    return capacity is not None and need.low_bytes > _CLEARLY * capacity


def _by_record(conf: str, row: WhatIf | None, *, surely: bool) -> SettingVerdict:
    """What is known of a setting from the recorded requests.

    Args:
        surely: whether it surely fails, whatever they lead to.
    """
    past = row is not None and row.past_failure
    peak_bytes = row.peak_reserved_bytes if row is not None else 0
    if not surely and (row is None or row.oom is not True):
        return SettingVerdict(
            conf=conf,
            lives=None,
            dies_after_bytes=None,
            confidence=Confidence.CONDITIONAL,
            peak_reserved_bytes=peak_bytes,
            past_failure=past,
        )
    return SettingVerdict(
        conf=conf,
        lives=False,
        dies_after_bytes=None if past else 0,
        confidence=Confidence.BOUNDED,
        peak_reserved_bytes=peak_bytes,
        failed_bytes=row.failed_bytes if row is not None else None,
    )


def _others_past_failure(proven: Proven) -> list[SettingVerdict]:
    """Other settings that get past the failure, where none of the common advice does."""
    confs = [conf for conf in _others(proven) if _parsed(proven, conf) != proven.recorded.settings]
    quick = simple_first(
        [row for row in _asked(proven, confs, quick=True).values() if row.past_failure]
    )
    confirmed = _asked(proven, [row.settings.conf for row in quick[:_CONFIRMED]], quick=False)
    return [
        _by_record(conf, row, surely=False) for conf, row in confirmed.items() if row.past_failure
    ]


def _asked(proven: Proven, confs: Sequence[str], *, quick: bool) -> dict[str, WhatIf]:
    if not confs:
        return {}
    rows = ask(proven, [question(proven, conf) for conf in confs], quick=quick)
    return dict(zip(confs, rows, strict=True))


def _others(proven: Proven) -> list[str]:
    """The settings worth trying beside the common advice that this version knows."""
    large = proven.recorded.version.large_segment_option
    return [
        conf
        for conf in WORTH_TRYING
        if conf and conf not in ADVICE and (large or "large_segment" not in conf)
    ]
