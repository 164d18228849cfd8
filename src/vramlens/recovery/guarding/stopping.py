"""Stopping: why a guard stops, for the report's first line, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from vramlens.recovery.guarding.guard_log import GuardLog
from vramlens.recovery.guarding.guard_story import GuardReport, Stop, size_words
from vramlens.recovery.guarding.optimizer_commit import is_half_done
from vramlens.recovery.guarding.remedies import Remedies
from vramlens.recovery.memory_errors import MemoryFailure, failure_of
from vramlens.recovery.splitting.learned_splits import write_split
from vramlens.recovery.training.batch_attempts import Call
from vramlens.recovery.training.rollback import BuffersLost

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch


class Stopping:
    """Ends a guard: notes why in its log, and tells whoever reads the error.

    Args:
        report: the guard's report so far.
    """

    def __init__(
        self, log: GuardLog, remedies: Remedies, report: Callable[[], GuardReport]
    ) -> None:
        self._log = log
        self._remedies = remedies
        self._report = report

    def without_remedy(self, failure: MemoryFailure | None, micro_batch: int | None) -> NoReturn:
        """Raises the error of a guard that has no remedy left, with its report.

        Args:
            failure: None: it was on another rank.
        """
        write_split(out_of_memory=True, micro_batch=micro_batch)
        text, last_remedy = "out of memory on another rank", None
        if failure is not None:
            text, last_remedy = failure.text, self._remedies.last_remedy()
            self._log.note("failure", f"no remedy left: {self._remedies.exhausted()}")
        self._log.stop = _stop_without_remedy(self._log.step, last_remedy)
        first, *lines, last = str(self._report()).splitlines()
        raise torch.OutOfMemoryError(
            "\n".join([f"vramlens guard: {first}", *lines, f"PyTorch: {text}", last])
        )

    def outside(self, error: BaseException) -> None:
        """Stops after a failure where nothing is repeated: in the step itself, or around it."""
        self._log.failures += 1
        tried_bytes = failure_of(error).tried_bytes
        text, stop = _stop_outside(self._log.step, is_half_done(error), tried_bytes)
        self._log.stop = stop
        self._log.note("failure", text)
        add_note(error, f"vramlens guard: {self._report().headline}\nnext: {stop.next}")

    def in_collectives(self, error: BaseException, call: Call) -> None:
        """Stops where a model is spread over ranks, which cannot be recovered in the middle:
        leaves what a restart needs.
        """
        half = None
        if call.samples is not None:
            half = max(1, -(-(call.size or call.samples.count) // 2))
        write_split(out_of_memory=True, micro_batch=half)
        self._log.note(
            "refusal",
            "out of memory in the middle of collectives: not recovered; restart with parts of"
            f" {half or 'fewer'} samples (VRAMLENS_MICRO_BATCH={half or '...'})",
        )
        self._log.failures += 1
        self._log.stop = _stop_in_collectives(self._log.step, half)
        add_note(error, str(self._report()))

    def without_buffers(self, error: BuffersLost) -> None:
        """Stops where a large buffer cannot be put back."""
        self._log.stop = Stop(
            step=self._log.step,
            reason=str(error).removeprefix("guard: "),
            next="load your last checkpoint with a smaller batch, and create a new guard",
        )


def add_note(error: BaseException, text: str) -> None:
    """Adds a note to an error, where this Python can (from 3.11 on)."""
    if hasattr(error, "add_note"):
        error.add_note(text)


def _stop_without_remedy(step: int, last_remedy: str | None) -> Stop:
    """No remedy was left; ``last_remedy`` None: on another rank."""
    if last_remedy is None:
        reason = "out of memory on another rank, which had no remedy left"
        return Stop(step, reason, "read the report of the rank that ran out of memory")
    return Stop(step, "out of memory, and every remedy was tried", last_remedy)


def _stop_outside(step: int, half_done: bool, tried_bytes: int | None) -> tuple[str, Stop]:
    """A failure where nothing is repeated: its event in words, and the stop."""
    load = "load your last checkpoint and create a new guard"
    if half_done:
        text = "out of memory in the optimizer step, after it had started to change parameters"
        reason = "parameters are only partly updated; restore the checkpoint"
        return text, Stop(
            step, reason, f"{load}(..., step_backup=True), which can undo such a step"
        )
    text = f"out of memory outside of forward and backward{size_words(tried_bytes)}"
    reason = "out of memory outside of forward and backward, where the guard cannot repeat the step"
    return text, Stop(step, reason, f"{load} with a smaller batch, or an optimizer with less state")


def _stop_in_collectives(step: int, half: int | None) -> Stop:
    """A model that is spread over ranks failed in the middle of a step."""
    reason = "out of memory in the middle of collectives, where no rank can repeat the step"
    return Stop(step, reason, f"restart all ranks with VRAMLENS_MICRO_BATCH={half or '...'}")
