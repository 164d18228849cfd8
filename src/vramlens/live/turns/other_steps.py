"""The steps of a program in which no optimizer steps.

A call of the model says most of what a program's work is. Where none is called it is a turn of the
outermost loop, and where turns are seen no longer, a tenth of a second. What comes later and says
more takes the place of what said less: growth is then counted anew, in its unit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import get_ident, main_thread
from types import FrameType
from typing import Any

from vramlens.capture.warn import harmless
from vramlens.live.turns.loop_turns import LoopTurns
from vramlens.live.turns.module_calls import ModuleCalls, has_compiled
from vramlens.live.turns.moments import SECONDS, Moments
from vramlens.units import counted

_TRAINING = re.compile(
    rb"\boptim(izers?)?\b|\.fit\(|\.train\(\)"
    rb"|\b(accelerate|fastai|ignite|lightning|pytorch_lightning|transformers|trl)\b"
)
"""What a script says that will step by an optimizer: its loops are not traced meanwhile. A backward pass
or a class named Trainer alone is none: a loop that updates its tensors by hand may have both.
"""

_STILL_MOMENTS = 10
"""Stretches without a turn of any loop, a second in all: half of it is a slow request, twice as
much would leave a program of three seconds with too few stretches.
"""
_MOMENTS_OF_TRAINING = 50
"""Stretches, five seconds in all, in which a script that speaks of an optimizer has stepped none: half
of that is its imports and its model.
"""


@dataclass(frozen=True, slots=True)
class StepUnit:
    """What a step is.

    Attributes:
        text: as it is told.
        is_of_time: whether it is a stretch of time.
        follows_loop: whether any loop before it is over: it may be a program's epilogue.
        follows_training: whether an optimizer stepped before it.
    """

    text: str
    is_of_time: bool = False
    follows_loop: bool = False
    follows_training: bool = False

    @property
    def note(self) -> str:
        """What a step is, as a sentence without its point."""
        if self.follows_training:
            return f"after the optimizer's last step, a step is {self.text}"
        return f"no optimizer has stepped: a step is {self.text}"


class OtherSteps:
    """Tells the ends of steps, until it is told to stop.

    Attributes:
        unit: what a step is; None before the first.
    """

    def __init__(
        self,
        torch: Any,
        ended: Callable[[FrameType], None],
        begun_anew: Callable[[], None],
        *,
        follows_training: bool = False,
    ) -> None:
        """Begins to listen.

        Args:
            torch: PyTorch.
            ended: is called at each step's end, with the frame that runs on.
            begun_anew: is called where the unit changes, before its first step.
            follows_training: whether an optimizer has stepped, and steps no more. Then the calls of
                a model are not listened to where something is compiled: it would be compiled anew.
        """
        self.unit: StepUnit | None = None
        self._ended, self._begun_anew = ended, begun_anew
        self._follows_training = follows_training
        self._calls: ModuleCalls | None = None
        if not (follows_training and has_compiled()):
            self._calls = ModuleCalls(torch, self._called)
        self._loops: LoopTurns | None = None
        self._moments: Moments | None = None
        self._turns_before = self._still_moments = self._moments_to_wait = 0
        self._are_loops_over = follows_training
        if follows_training or get_ident() == main_thread().ident:
            self._loops = LoopTurns(self._turned, self._loop_chosen)
            if not follows_training and _is_training_script():
                self._moments_to_wait = _MOMENTS_OF_TRAINING
            else:
                self._loops.begin()
            self._moments = Moments(self._passed)

    def stop(self) -> None:
        """Listens no longer."""
        if self._calls is not None:
            self._calls.stop()
        self._stop_lesser()

    def _stop_lesser(self) -> None:
        """Ends all that says less than a call of the model."""
        if self._moments is not None:
            self._moments.stop()
        if self._loops is not None:
            self._loops.stop()
        self._moments = self._loops = None

    def _unit(self, text: str, *, is_of_time: bool = False, follows_loop: bool) -> StepUnit:
        return StepUnit(text, is_of_time, follows_loop, self._follows_training)

    def _called(self) -> None:
        calls = self._calls
        if calls is None:
            return
        self.unit = self._unit(f"a call of {calls.root_name}", follows_loop=self._follows_training)
        if self._loops is not None:
            self._stop_lesser()
            self._begun_anew()
        self._ended(sys._getframe(1))

    @harmless("counting turns of the program's loop")
    def _turned(self, frame: FrameType) -> None:
        self._ended(frame)

    @harmless("counting turns of the program's loop")
    def _loop_chosen(self) -> None:
        if self._loops is not None and self._loops.loop is not None:
            self.unit = self._unit(
                f"a turn of the loop at {self._loops.loop.place}", follows_loop=True
            )
            self._begun_anew()

    @harmless("watching over time")
    def _passed(self) -> None:
        if self._loops is None or not self._have_turns_ended(self._loops):
            return
        if self.unit is None or not self.unit.is_of_time:
            self.unit = self._unit(
                _time_text(self._loops), is_of_time=True, follows_loop=self._are_loops_over
            )
            self._begun_anew()
        frame = sys._current_frames().get(main_thread().ident or 0)
        if frame is not None:
            self._ended(frame)

    def _have_turns_ended(self, loops: LoopTurns) -> bool:
        """Whether turns are seen no longer, or none came for long: other threads are at work."""
        if self._moments_to_wait:
            self._moments_to_wait -= 1
            return False
        is_still = loops.all_turns == self._turns_before and not _is_in_turn(loops)
        self._still_moments = self._still_moments + 1 if is_still else 0
        self._turns_before = loops.all_turns
        if self._still_moments >= _STILL_MOMENTS and loops.sees_turns:
            self._are_loops_over = True
            loops.stop()
        return not loops.sees_turns


def _is_in_turn(loops: LoopTurns) -> bool:
    """Whether the main thread is in a turn of the unit, in a loop whose turns are left out."""
    frame = sys._current_frames().get(main_thread().ident or 0)
    return loops.leaves_out and frame is not None and loops.is_within(frame)


def _time_text(loops: LoopTurns) -> str:
    """A stretch of time, and after which turns."""
    text = f"{SECONDS:g} s in which the program ran"
    if loops.loop is not None:
        turns = counted(loops.turns, "turn")
        text = f"{text}, after {turns} of the loop at {loops.loop.place}"
    return text


def _is_training_script() -> bool:
    """Whether the main script speaks of an optimizer or a trainer."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    with suppress(OSError, TypeError, ValueError), open(path or "", "rb") as file:
        return _TRAINING.search(file.read()) is not None
    return False
