"""An error file: what a rank that torchrun started said when its program raised."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vramlens.trace.stacks import Frame, user_frame_of

# What the other ranks say when one is gone: NCCL's watchdog, c10d's sockets, gloo, the store.
_FOLLOWS = re.compile(
    r"(?i)DistBackendError|watchdog|NCCL.{0,40}(?:time|abort|remote|unhandled system)|connection (?:closed|reset)|"
    r"broken pipe|DistNetworkError|DistStoreError|timed? ?out|SignalException|socket|peer"
)


@dataclass(frozen=True, slots=True)
class RankError:
    """One rank's error file.

    Attributes:
        source: the file's name as it was given.
        message: the exception, its type first; one line.
        time_s: when it was written, in whole seconds since the epoch; None where the file does not
            say.
        frames: of its traceback, innermost first; empty where there is none.
        follows: whether it only says that another rank is gone or does not answer.
    """

    source: str
    message: str
    time_s: int | None
    frames: tuple[Frame, ...]
    follows: bool

    @property
    def user_frame(self) -> Frame | None:
        """The user's innermost frame; None where there is none."""
        return user_frame_of(self.frames)


def tells_of_another(message: str) -> bool:
    """Whether an error only says that another rank is gone or does not answer."""
    return bool(_FOLLOWS.search(message))
