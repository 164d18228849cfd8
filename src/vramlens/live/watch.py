"""Leak watching: counts at each step's end, and one search when a report is asked for."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import chain
from types import CodeType, FrameType

from vramlens.ground.program_errors import own_errors
from vramlens.live.counters.step_counters import StepCounters
from vramlens.live.growth.births import Births
from vramlens.live.growth.line_observer import Observer
from vramlens.live.growth.pace import FEWEST, WARM_UP
from vramlens.live.growth.ration import FIRST_STEPS
from vramlens.live.heap.objects import is_own_file
from vramlens.live.heap.search_time import LONG, SearchTime
from vramlens.live.heap.tensors import TorchObjects, loaded
from vramlens.live.heap_look import HeapLook, OwnedStorage
from vramlens.live.leaks.leak_report import LeakReport


class LeakWatch:
    """Watches what the steps of a program leave behind.

    Call ``step()`` at each step's end: it costs microseconds, now and then a fraction of a
    millisecond. ``report()`` searches everything that is alive once, and says what grew, who holds
    it, which statement keeps it, and what to change. CPU tensors and GPU tensors are the same to
    it.
    """

    def __init__(self, former: LeakWatch | None = None) -> None:
        """Begins.

        Args:
            former: a watch by another unit of steps, which may still be asked: what it has seen is
                not looked for again.
        """
        self._torch: TorchObjects | None = None
        self._births: Births | None = None
        self._observer: Observer | None = None
        self._counters: StepCounters | None = None
        self._steps = 0
        self._code: CodeType | None = None  # of what calls step()
        self._is_over = False
        if former is not None and former._observer is not None:
            former._observer.end(whole=False)
        self._begin(None if former is None else former._births)

    def _begin(self, earlier: Births | None = None) -> None:
        self._torch = loaded()
        if self._torch is not None:
            self._births = Births(self._torch, earlier)
            self._observer = Observer(self._torch)
            self._counters = StepCounters(self._torch.torch)

    @property
    def steps(self) -> int:
        """Steps that have ended since the watch began."""
        return self._steps

    def step(self, caller: FrameType | None = None) -> None:
        """Ends a step; ``caller`` is the frame that runs on, by default the one that calls this."""
        if self._observer is not None:
            self._observer.end()
        self._steps += 1
        if self._births is None:
            self._begin()
        if self._births is not None:
            self._births.step_ended()
        if self._steps == FIRST_STEPS:
            self._end_first_steps()
        if self._counters is not None:
            with own_errors():  # a counter that this version does not have
                self._counters.read(self._steps)
        caller = sys._getframe(1) if caller is None else caller
        self._code = caller.f_code
        if self._observer is not None:
            self._observer.begin(self._steps + 1, caller)

    def _end_first_steps(self) -> None:
        """From now on watching takes a share of the program's time."""
        parts: list[Births | Observer | StepCounters | None]
        parts = [self._births, self._observer, self._counters]
        for ration in chain.from_iterable(part.rations for part in parts if part is not None):
            ration.first_steps_ended()

    @property
    def may_have_grown(self) -> bool:
        """Whether a look could find growth: what several steps had left alive when that was summed,
        or a counter that rose. Costs less than a millisecond.
        """
        if self._births is None or self._counters is None:
            return False
        step, bytes_by_step = self._births.latest_sum
        if not self._births.is_summed:
            step, bytes_by_step = self._steps, self._births.bytes_alive()
        survivors = sum(WARM_UP < born < step for born in bytes_by_step)
        return survivors >= FEWEST or self._counters.may_have_grown(self._steps)

    @property
    def spent_seconds(self) -> float:
        """What watching took beside the calls of ``step()``."""
        return 0.0 if self._observer is None else self._observer.spent_seconds

    def stop(self) -> None:
        """Ends what goes on between steps; the watch is of no use after it."""
        if self._observer is not None:
            self._observer.end(whole=False)
        if self._births is not None:
            self._births.close()

    def program_ends(self) -> None:
        """No step is in the making any more: what came after the last one is accounted for, too."""
        self._is_over = True

    def report(self) -> LeakReport:
        """The growth so far, and who holds it. Searches the heap: about a second for a million
        objects.
        """
        if self._torch is None or self._births is None:
            return LeakReport(
                self._steps,
                (),
                ("the program has not imported torch: there are no tensors to watch",),
            )
        if self._observer is not None:
            self._observer.end(whole=False)
        look = HeapLook(
            self._torch, self._births, self._observer, self._counters, is_over=self._is_over
        )
        report, _ = look.report()
        if report.gone is None or self._code is None or is_own_file(self._code.co_filename):
            return report
        return replace(report, gone=replace(report.gone, function=self._code.co_name))

    def owned(
        self, allowed: SearchTime = LONG, *, is_brief: bool = False
    ) -> tuple[LeakReport, list[OwnedStorage]] | None:
        """The report, and for every live storage the index of the leak in it that owns it; None
        without torch.

        Args:
            allowed: the time that the search may take.
            is_brief: whether only what the user's own code reaches is searched.
        """
        if self._torch is None or self._births is None:
            return None
        if self._observer is not None:
            self._observer.end(whole=False)
        look = HeapLook(
            self._torch,
            self._births,
            self._observer,
            self._counters,
            allowed=allowed,
            is_brief=is_brief,
            is_over=self._is_over,
        )
        return look.report()
