"""The caching allocator as a simulator.

answer: ``vramlens replay``: the proof, and what each of some settings would have led to.
failed_step: what explain knows of the step whose failure ended the recording, with each setting.
first_difference: where a replay first did something else than the recording says, in words.
explained: what replay adds to an explanation.
proof: a recording replayed under its own settings, which proves the replay.
requests: what a program asked of the allocator, as replay is fed it.
settings: the allocator's settings, read as PyTorch reads them.
start_state: what was there when recording began.
tuning: ``vramlens tune``: the settings worth trying, the best, and the smallest card for each.
versions: what differs between PyTorch's versions, as data.
what_if: what a recording's requests lead to under other settings, with how sure that is.
need: what a failed step would have needed, and what would have carried it.
"""

from __future__ import annotations

from vramlens.replay.answer import Answer, replay_trace
from vramlens.replay.explained import with_replay
from vramlens.replay.first_difference import FirstDifference
from vramlens.replay.proof import Proven, Recorded, ReserveLimit, prove
from vramlens.replay.settings import Settings, SettingsError, parse_settings
from vramlens.replay.tuning import WORTH_TRYING, CardUnderSetting, Tuned, Tuning, tune_trace
from vramlens.replay.versions import VERSIONS, Version
from vramlens.replay.what_if import Curve, WhatIf

__all__ = [
    "VERSIONS",
    "WORTH_TRYING",
    "Answer",
    "CardUnderSetting",
    "Curve",
    "FirstDifference",
    "Proven",
    "Recorded",
    "ReserveLimit",
    "Settings",
    "SettingsError",
    "Tuned",
    "Tuning",
    "Version",
    "WhatIf",
    "parse_settings",
    "prove",
    "replay_trace",
    "tune_trace",
    "with_replay",
]
