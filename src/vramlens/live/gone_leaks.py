"""Leaks that are over when the program ends. Of an earlier look: emptied in their time, used up as a
result, or let go with the function, pool or block that held them. Of an earlier loop: still there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vramlens.ground.verdict import Verdict
from vramlens.live.holder.route import size_of
from vramlens.live.leaks.leak_report import Gone, LeakReport, LiveLeak
from vramlens.live.turns.loop_results import whole_use

_EXPLAINED = 0.75
"""Of the bytes that the sums rose by in a step: with half, as much again may be another's."""
_FALLEN = 0.5
"""Of its size, to which what is emptied falls: a queue loses single entries."""
_NO_RESULTS = {"exception", "hook", "closure", "cycle", "autograd_cycle"}
"""Classes of what no loop is run for."""
_LEAST_OF_ENDED = 256 * 1024
"""Bytes that a loop left that has ended, and that matter although no more come: positions and scores of
a few hundred turns are less, a few images more.
"""


class FollowedSizes:
    """How many things something held at a look, and at the latest step.

    Attributes:
        has_fallen: whether it was emptied since the look, by half at least.
        is_emptied_at_end: whether it was emptied so after the last step.
        is_there: whether it still is when the program has ended, and has not been emptied.
    """

    def __init__(self, step: int, size: int) -> None:
        self._first = self._last = (step, size)
        self._largest = size
        self.has_fallen = self.is_emptied_at_end = self.is_there = False

    def add(self, step: int, container: Any) -> None:
        """Notes the size of what is there at a step; what has gone does not count as emptied."""
        size = size_of(container)
        self._last = step, size
        self._largest = max(self._largest, size)
        self.has_fallen |= self._is_emptied(container)

    def end(self, container: Any) -> None:
        """Notes what is there when the program has ended."""
        self.is_emptied_at_end = self._is_emptied(container)
        self.is_there = container is not None and not self.is_emptied_at_end

    def _is_emptied(self, container: Any) -> bool:
        return container is not None and size_of(container) <= _FALLEN * self._largest

    def grew_until(self, step: int) -> bool:
        """Whether it held more at a step than at the look, by half as much a step at least."""
        (looked, before), (last, now) = self._first, self._last
        return (
            last == step and now > 0 and (now - before) * looked >= 0.5 * before * (last - looked)
        )


def gone_leak(
    leak: LiveLeak, sizes: FollowedSizes | None, steps: int, gone: Gone | None
) -> LiveLeak:
    """The leak with the verdict that is left of it: likely at most, and only if it grew until the
    last step and the program made no use of it.

    Args:
        sizes: of what keeps it, since the look; None where it could not be followed.
        steps: that have ended.
        gone: the growth that the sums of live bytes saw.
    """
    if not leak.sure:
        return leak
    if sizes is not None and sizes.has_fallen:
        reason = "the program empties it from time to time"
        return replace(leak, verdict=Verdict.NOT_A_PROBLEM, reason=reason, fix=None)
    if sizes is not None and sizes.is_emptied_at_end and not _is_librarys(leak):
        reason = leak.reason_and("the program emptied it after its last step")
        return replace(leak, verdict=Verdict.POSSIBLE, reason=reason, fix=None)
    use = "" if leak.owner is None or leak.kind == "graph" else whole_use(leak.owner)
    if use:
        reason = leak.reason_and(f"it is gone now, and {use}: it may be a result")
        return replace(leak, verdict=Verdict.POSSIBLE, reason=reason, fix=None)
    if leak.is_remade:
        reason = leak.reason_and("it is gone now: a sequence that grows until it is done looks so")
        return replace(leak, verdict=Verdict.POSSIBLE, reason=reason, fix=None)
    last = steps if sizes is not None and sizes.grew_until(steps) else _grown_until(leak, gone)
    if last:
        last_step_words = ", the last," if last == steps else ""
        reason = (
            f"it grew until step {last:,}{last_step_words} and is gone now: it is unknown whether"
            " it would have stayed"
        )
        return replace(leak, verdict=Verdict.LIKELY, reason=leak.reason_and(reason))
    reason = "it is gone now and did not grow until the last step, so it may have been emptied"
    return replace(leak, verdict=Verdict.POSSIBLE, reason=leak.reason_and(reason))


def possible_owners(before: LeakReport, gone: Gone) -> tuple[LiveLeak, ...]:
    """The possible leaks of an earlier look that are all of what is gone: who kept it is known; none
    where they were less.
    """
    rate = sum(leak.bytes_per_step for leak in before.possible)
    if rate < _EXPLAINED * gone.bytes_per_step:
        return ()
    return tuple(
        replace(leak, reason=leak.reason_and("it is gone now")) for leak in before.possible
    )


def without_certainty(report: LeakReport) -> LeakReport:
    """The report of a loop that another has followed: its leaks are possible at most, as it may have
    prepared what the next one uses; likely where the source shows that nothing does.
    """
    return replace(report, leaks=tuple(map(_of_ended_loop, report.leaks)))


def _of_ended_loop(leak: LiveLeak) -> LiveLeak:
    if leak.bytes < _LEAST_OF_ENDED:
        leak = replace(leak, is_small=True)
    if not leak.sure:
        return leak
    if leak.in_vain:
        is_told = leak.in_vain in leak.reason
        reason = f"the loop that it grew in has ended, but {leak.in_vain}"
        return replace(
            leak,
            verdict=Verdict.LIKELY,
            reason=leak.reason if is_told else leak.reason_and(reason),
        )
    if leak.kind in _NO_RESULTS:
        reason = leak.reason_and("the loop that it grew in has ended")
        return replace(leak, verdict=Verdict.LIKELY, reason=reason)
    reason = leak.reason_and("the loop that it grew in has ended: it may be its result")
    return replace(leak, verdict=Verdict.POSSIBLE, reason=reason)


def _is_librarys(leak: LiveLeak) -> bool:
    """Whether a library's object empties itself when it ends, as an ``ExitStack`` does."""
    return leak.owner is not None and leak.owner.name.endswith("(…)")


def _grown_until(leak: LiveLeak, gone: Gone | None) -> int:
    """The step until which the sums of live bytes grew by what a leak of an earlier look left
    behind; 0 where they did not, or by more.
    """
    if gone is None or leak.bytes_per_step < _EXPLAINED * gone.bytes_per_step:
        return 0
    return gone.step
