"""A script whose prediction is held against a budget: its recording is gone when the answer is
read.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PredictedScript:
    """What was predicted.

    Attributes:
        script: the script.
        options: those of ``vramlens predict`` that decided the prediction.
        arguments: the script's own.
    """

    script: str
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    def command(self, verb: str, *, options: Sequence[str] = ()) -> str:
        """The command that asks a verb about the script again.

        Args:
            options: of the verb, beside those of the prediction.
        """
        own = ("--", *self.arguments) if self.arguments else ()
        return shlex.join(("vramlens", verb, *options, *self.options, self.script, *own))
