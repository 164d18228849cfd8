"""The verdict on a failure that ended a program: what it would have needed, which settings carry it, and why it died."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vramlens.analyses.blocks import need_of_first_step, unseen_optimizer_bytes
from vramlens.analyses.need import Need, SettingVerdict
from vramlens.replay.need import Projection, need_of, projection_of, verdict_of_setting
from vramlens.replay.tune import WORTH_TRYING
from vramlens.replay.what_if import ask, question
from vramlens.units import MIB

if TYPE_CHECKING:
    from vramlens.analyses.attribution import Attribution
    from vramlens.analyses.explanation import OomVerdict
    from vramlens.replay.proof import Proven
    from vramlens.replay.settings import Settings
    from vramlens.trace import OutOfMemory

ADVICE = (
    "expandable_segments:True",
    "max_split_size_mb:128",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:8",
)
"""What people are told to try when memory ran out."""
_RUNS_TO_PROJECT = 10
_RUNS_TO_SEARCH = 24
_RUNS_FOR_MORE = 120
_CLEARLY = 1.02


@dataclass(frozen=True, eq=False)
class Judgement:
    """What replay has to say about a failure.

    Attributes:
        need: what the step would have needed.
        settings: what each setting would have changed, those of ADVICE first.
        projection: the step continued to its end; None where no earlier step is like it.
    """

    need: Need
    settings: tuple[SettingVerdict, ...]
    projection: Projection | None


def judgement_of(view: Attribution, proven: Proven, oom: OomVerdict, runs: int) -> Judgement:
    """The need of a failure, and what each setting would have made of it.

    Args:
        runs: how often the recording may be replayed: bounds the time.
    """
    request = view.device.out_of_memory[-1]
    projection = projection_of(view, proven, request) if runs >= _RUNS_TO_PROJECT else None
    if projection is None:
        need = need_of_first_step(view, request, oom.reserved_bytes or 0) or unknown_need(oom)
        return Judgement(need, tuple(_without_projection(proven, need, runs)), None)
    unseen = 0 if projection.template.whole_steps else unseen_optimizer_bytes(view, request.event)
    need = need_of(proven, projection, unseen, searching=runs >= _RUNS_TO_SEARCH)
    is_whole = not unseen
    settings = _told(proven, projection, ADVICE, is_whole=is_whole)
    if runs >= _RUNS_FOR_MORE and is_whole and not any(row.lives for row in settings):
        others = [conf for conf in WORTH_TRYING if conf and conf not in ADVICE]
        settings += [row for row in _told(proven, projection, others, is_whole=True) if row.lives]
    return Judgement(need, tuple(settings), projection)


def unknown_need(oom: OomVerdict) -> Need:
    """All that is known where nothing of the step is: at least what was alive, and the request."""
    least = (oom.allocated_bytes or 0) + (oom.requested_bytes or oom.tried_bytes or 0)
    return Need(None, least, None, None, confidence="conditional", floor_bytes=least)


def open_settings(failed_with: Sequence[str] = ()) -> tuple[SettingVerdict, ...]:
    """The common advice where nothing can be said about it; what the run had on did not help."""
    return tuple(
        SettingVerdict(conf, False if conf in failed_with else None, 0 if conf in failed_with else None, "conditional", 0)
        for conf in ADVICE
    )


def _parsed(proven: Proven, conf: str) -> Settings:
    return question(proven, conf).settings


def _told(proven: Proven, projection: Projection, confs: Sequence[str], *, is_whole: bool) -> list[SettingVerdict]:
    """The verdict on each setting, on all cores."""

    def judged(conf: str) -> SettingVerdict:
        settings = _parsed(proven, conf)
        if settings == proven.recorded.settings:
            return SettingVerdict(conf, False, 0, "exact", proven.recorded.peak_reserved_bytes)
        found = verdict_of_setting(proven, projection, settings, is_whole=is_whole)
        if proven.recorded.warm and found.lives is not None:
            # Memory from before the recording cannot be moved to where another setting would have put it.
            return replace(found, lives=None, dies_after_bytes=None, confidence="conditional")
        return found

    confs = [conf for conf in confs if "large_segment_size_mb" not in conf or _knows_large(proven)]
    with ThreadPoolExecutor(max_workers=max(1, min(len(confs), os.cpu_count() or 1))) as pool:
        return list(pool.map(judged, confs))


def _knows_large(proven: Proven) -> bool:
    return proven.recorded.version.large_segment_option


def _without_projection(proven: Proven, need: Need, runs: int) -> list[SettingVerdict]:
    """What each setting does to the recorded requests alone, where the rest of the step is not known."""
    limit = proven.recorded.limit
    capacity = None if limit.bytes is None else max(limit.bytes, (limit.below_bytes or 1) - 1)
    too_much = capacity is not None and need.low_bytes > _CLEARLY * capacity
    settings = [_parsed(proven, conf) for conf in ADVICE]
    others = [one for one in settings if one != proven.recorded.settings]
    asked = runs >= 2 * len(ADVICE) and not proven.recorded.warm
    rows = dict(zip(map(id, others), ask(proven, [question(proven, one.conf) for one in others]), strict=True)) if asked else {}
    found = []
    for conf, one in zip(ADVICE, settings, strict=True):
        row = rows.get(id(one))
        dies = one == proven.recorded.settings or too_much or (row is not None and row.oom is True)
        reserved = row.peak_reserved_bytes if row is not None else 0
        after = 0 if dies and not (row is not None and row.past_failure) else None
        found.append(SettingVerdict(conf, False if dies else None, after, "bounded" if dies else "conditional", reserved))
    return found
