"""The caching allocator as a simulator: the proof that it is right, what-if, and the search for
better settings.
"""

from __future__ import annotations

from vramlens.replay.answer import Answer, replay_trace
from vramlens.replay.curve import Curve
from vramlens.replay.difference import Difference
from vramlens.replay.explained import with_replay
from vramlens.replay.proof import Limit, Proven, Recorded, prove
from vramlens.replay.settings import Settings, SettingsError, parse_settings
from vramlens.replay.tune import WORTH_TRYING, Card, Tuned, Tuning, tune_trace
from vramlens.replay.versions import VERSIONS, Version
from vramlens.replay.what_if import WhatIf

__all__ = [
    "VERSIONS",
    "WORTH_TRYING",
    "Answer",
    "Card",
    "Curve",
    "Difference",
    "Limit",
    "Proven",
    "Recorded",
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
