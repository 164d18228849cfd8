"""An error file: what a rank that torchrun started said when its program raised."""

from __future__ import annotations

from dataclasses import dataclass

from vramlens.trace.stacks import Frame


@dataclass(frozen=True, slots=True)
class RankError:
    """One rank's error file.

    Attributes:
        source: the file's name as it was given.
        message: the exception, its type first; one line.
        time_s: when it was written, in whole seconds since the epoch; None where the file does not say.
        frames: of its traceback, innermost first; empty where there is none.
        follows: whether it only says that another rank is gone or does not answer.
    """

    source: str
    message: str
    time_s: int | None
    frames: tuple[Frame, ...]
    follows: bool
