"""Settings that change nothing: with them the run comes out as it was recorded, event by event, and so
fails as it did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramlens._native import Replay
from vramlens.replay.proof import is_as_recorded

if TYPE_CHECKING:
    from vramlens.replay.proof import Proven
    from vramlens.replay.settings import Settings


def changes_nothing(proven: Proven, settings: Settings) -> bool:
    """Whether every segment and address comes out as recorded under other settings, too.

    That is sure where other ways to ask leave it open: the recorded addresses are the driver's own.
    """
    recorded = proven.recorded
    if settings == recorded.settings:
        return True
    if not recorded.exact or settings.expandable_segments != recorded.settings.expandable_segments:
        return False
    native = proven.native(settings, **recorded.limit.native)
    replay = Replay(proven.requests.columns, pools=len(proven.requests.pools), settings=native)
    return is_as_recorded(replay.summary)
