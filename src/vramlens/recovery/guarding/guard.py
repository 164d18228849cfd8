"""The guard: training steps that survive out of memory, with the gradients that they would have
had.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.capture.warn import say
from vramlens.errors import UsageError
from vramlens.recovery.guarding.guard_arguments import TrainedParameters, refuse_wrong_arguments
from vramlens.recovery.guarding.guard_log import GuardLog
from vramlens.recovery.guarding.guard_options import GuardOptions
from vramlens.recovery.guarding.guard_story import FOREIGN, NO_OPTIMIZER, GuardReport, size_words
from vramlens.recovery.guarding.optimizer_commit import Committing, StepOptions, is_half_done
from vramlens.recovery.guarding.part_size import PartSize
from vramlens.recovery.guarding.rank_agreement import (
    BROKEN,
    FAILED,
    FINE,
    OTHER_ERROR,
    PeerFailed,
    ranks_of,
)
from vramlens.recovery.guarding.remedies import Remedies
from vramlens.recovery.guarding.step_start import StepStart
from vramlens.recovery.guarding.stopping import Stopping, add_note
from vramlens.recovery.losses.part_losses import LossFunction, misfit
from vramlens.recovery.memory_errors import (
    OUT_OF_MEMORY,
    STICKY,
    MemoryFailure,
    failure_of,
    kind_of,
    let_go,
    let_go_of_the_last,
)
from vramlens.recovery.meters import meter_of
from vramlens.recovery.splitting.batch_parts import CannotSplit, equal_parts, ranges
from vramlens.recovery.splitting.split_proofs import SplitProofs, TrainingContext
from vramlens.recovery.training.batch_attempts import Call, Runner
from vramlens.recovery.training.rollback import BuffersLost
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_STOP, _UNCHANGED = -1, 1 << 62
"""In place of a size of parts, where ranks agree on one: the least of all ranks' answers holds."""
_MOST_CLIP_FAILURES = 2
_EVAL_MODE = (
    "the model is in eval mode, so dropout is off and running statistics do not change; did "
    "you forget model.train()?"
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """How an attempt at the batches of a step went.

    Attributes:
        loss: of the last batch; None where memory ran out.
        failure: the out-of-memory error; None: there was none.
        is_confirmed: whether the parts of all batches did what was proven.
    """

    loss: torch.Tensor | None
    failure: MemoryFailure | None = None
    is_confirmed: bool = True

    @property
    def is_fine(self) -> bool:
        """Whether nothing has to be run again on this rank."""
        return self.failure is None and self.is_confirmed

    @property
    def status(self) -> int:
        """The same as other ranks are told it."""
        return FINE if self.is_fine else FAILED


class Guard:
    """Runs training steps; made by ``vramlens.guard``, which describes the arguments."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        scaler: Any,
        options: GuardOptions,
    ) -> None:
        refuse_wrong_arguments(model, optimizer)
        self._options = options
        self._trained = TrainedParameters(model, optimizer)
        parameters = self._parameters = self._trained.parameters
        if not parameters:
            raise UsageError(
                "guard: no parameter of the model requires a gradient, so there is nothing to train"
            )
        devices = sorted({parameter.device for parameter in parameters}, key=str)
        self._meter = options.meter or meter_of(devices[0])
        self._ranks = ranks_of(model, options.timeout_s)
        self._log = GuardLog(self._meter)
        self._note = self._log.note
        self._window: list[Call] = []
        self._start = StepStart(model, parameters, devices, self._meter)
        self._size = PartSize(options, self._note)
        self._clip_failures = 0
        self._runner = Runner(self._ranks.inside(model), parameters, scaler)
        self._committing = Committing(
            optimizer,
            scaler,
            parameters,
            options=StepOptions(options.clip, options.step_backup),
            meter=self._meter,
            note=self._note,
        )
        around = TrainingContext(
            model=model,
            parameters=self._trained.named,
            devices=devices,
            clean=self._after_a_failed_check,
            scale=self._committing.scale,
            note=self._note,
            agree=self._ranks.least if self._ranks.sharded else None,
        )
        self._proofs = SplitProofs(around, options)
        self._remedies = Remedies(around, options, meter=self._meter, proofs=self._proofs)
        self._stopping = Stopping(self._log, self._remedies, self.report)
        self._note_the_beginning(model, optimizer)

    def _note_the_beginning(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None
    ) -> None:
        """Says what is out of the ordinary."""
        if self.micro_batch is not None:
            size = counted(self.micro_batch, "sample")
            self._note("split", f"starts with parts of at most {size}, as learned before")
        if optimizer is None:
            self._note("note", NO_OPTIMIZER)
        elif self._trained.are_foreign:
            self._note("note", FOREIGN)
            say(f"guard: {FOREIGN}")
        if not model.training:
            self._note("note", _EVAL_MODE)
            say("guard: the model is in eval mode; call model.train() before training")

    @property
    def micro_batch(self) -> int | None:
        """The most samples that a part has now; None: batches are run whole."""
        return self._size.samples

    @micro_batch.setter
    def micro_batch(self, samples: int | None) -> None:
        self._size.samples = samples

    def step(
        self, batch: Any, loss_fn: LossFunction, *, commit: bool = True, scale: float = 1.0
    ) -> torch.Tensor:
        """The loss of a batch, after its gradient was taken and the optimizer has stepped, once.

        Args:
            batch: a tensor, or dicts, lists, tuples and dataclasses of them.
            loss_fn: (model, batch) -> a mean loss, or (sum, count). It is given the model to call.
            commit: False: only add the gradient, as for accumulation over several batches; a later
                call commits.
            scale: what the loss is multiplied by before the backward, as 1 / the number of
                accumulated batches.

        Returns:
            The loss of the whole batch (not scaled), without a graph, on its device.

        Raises:
            torch.OutOfMemoryError: no remedy is left; the text is a report.
            CannotSplit: it had to be split and cannot be; the text names the leaf.
        """
        stop = self._log.stop
        if stop is not None:
            raise UsageError(f"guard: it has stopped ({stop.reason}); {stop.next}")
        try:
            if not self._window:
                self._begin()
            call = Call(batch, loss_fn, scale)
            self._window.append(call)
            self._log.calls += 1
            self._note_loss_values(loss_fn)
            self._admit(call)
            loss = self._until_done(call, commit)
            if commit:
                self._commit()
        except BaseException as error:
            self._window.clear()
            self._committing.forget()
            if self._log.stop is None and kind_of(error) == OUT_OF_MEMORY:
                self._stopping.outside(error)
            if isinstance(error, TypeError) and (wrong := misfit(loss_fn)):
                raise UsageError(f"guard.step: {wrong}") from error
            raise
        return loss

    def verify(self, batch: Any, loss_fn: LossFunction) -> Any:
        """The check that a split changes nothing, made on a few samples of a batch; never raises.

        Called by itself before the first split; call it earlier to know earlier.
        """
        call = Call(batch, loss_fn)
        call.split(self._options.split)
        return self._proofs.prove(call, self._runner.model)

    def report(self) -> GuardReport:
        """What has happened so far; print it."""
        return self._log.report(
            micro_batch=self.micro_batch if self._proofs.splitting else None,
            forwards=self._runner.forwards,
        )

    def __repr__(self) -> str:
        return self.report().headline

    def state_dict(self) -> dict[str, Any]:
        """What was learned, for a checkpoint: plain numbers and names."""
        return {
            "micro_batch": self.micro_batch,
            "failed_size": self._size.failed_samples,
            **self._remedies.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with what was learned before."""
        self.micro_batch = state.get("micro_batch")
        self._size.failed_samples = state.get("failed_size")
        self._remedies.load_state(state)
        self._runner.around = self._remedies.around()

    # A step's attempts.

    def _begin(self) -> None:
        """Notes how everything is, before the first batch of a commit."""
        self._trained.find()
        self._committing.prepare()
        self._start.note(self._ranks.share_buffers)
        self._clip_failures = 0

    def _note_loss_values(self, loss_fn: LossFunction) -> None:
        earlier_calls = self._window[:-1]
        if not any(call.loss_fn is loss_fn for call in earlier_calls):
            self._start.note_loss_values(loss_fn)

    def _admit(self, call: Call) -> None:
        """Splits before a batch whose predicted peak passes the threshold."""
        size = self._remedies.admitted(call, self.micro_batch, self._runner.model)
        if size is not None:
            self._size.change(size, "the predicted peak exceeds the threshold")

    def _until_done(self, call: Call, commit: bool) -> torch.Tensor:
        """Tries until it works; goes back to the beginning of the window after each failure."""
        calls = [call]
        has_failed = others_failed = False
        while True:
            attempt = self._attempt(calls)
            status = self._ranks.settle(attempt.status)
            if status == FINE and commit:
                attempt, status = self._finish_gradients(attempt)
            if status == FINE:
                assert attempt.loss is not None
                self._log.recovered += has_failed
                self._log.elsewhere += others_failed and not has_failed
                return attempt.loss
            if status == BROKEN:
                raise PeerFailed(OTHER_ERROR)
            has_failed |= attempt.failure is not None
            others_failed |= attempt.is_fine
            self._log.failures += attempt.failure is not None
            self._recover(attempt.failure)
            calls = list(self._window)

    def _attempt(self, calls: list[Call]) -> Attempt:
        """The last call's loss, or the failure in words: the exception and its frames are gone
        when it returns.
        """
        loss = failure = None
        try:
            with self._ranks.attempt():
                for call in calls:
                    loss = self._run(call)
            self._runner.phase = "reduction"
            self._ranks.make_room(self._parameters)
        except Exception as error:
            failure = self._failure_in(error)
        if failure is not None:
            return Attempt(None, failure)
        return Attempt(loss, is_confirmed=self._is_confirmed(calls))

    def _run(self, call: Call) -> torch.Tensor:
        """The loss of a batch, whole or in parts."""
        call.size = call.parts_seen = None
        is_whole = self.micro_batch is None or call.refusal
        if is_whole and not self._ranks.sharded:
            return self._runner.whole(call)
        bounds = self._bounds(call)
        weights = None
        if len(bounds) > 1:
            start, stop = bounds[0]
            call.size = stop - start
            weights = self._proofs.weights(call, self._runner.model)
        if weights is None:
            call.size = None
            return self._runner.whole(call)
        return self._runner.split(call, bounds, weights)

    def _bounds(self, call: Call) -> list[tuple[int, int]]:
        """The parts of a call's batch; none where it cannot be split."""
        try:
            samples = call.split(self._options.split)
        except CannotSplit as error:
            self._note("refusal", f"does not split: {error}")
            return []
        bounds = ranges(samples.count, self.micro_batch or samples.count)
        if self._ranks.sharded:
            parts = self._ranks.parts(len(bounds), samples.count)
            return equal_parts(samples.count, parts)
        return bounds

    def _is_confirmed(self, calls: list[Call]) -> bool:
        """Whether the parts of all calls did what was proven, and changed no buffer that they
        should not.
        """
        model = self._runner.model
        changed_buffers = self._start.buffers.changed
        changed_holders = self._start.model_values.changed_holders
        if self._remedies.undo_recomputation(changed_buffers, changed_holders):
            return False
        confirmed = [self._proofs.confirmed(call, model, changed_buffers) for call in calls]
        return all(confirmed)

    def _finish_gradients(self, attempt: Attempt) -> tuple[Attempt, int]:
        """Averages over ranks, unscales and clips; a failure is one of the batch, as no
        parameter has changed yet.
        """
        self._ranks.reduce(self._parameters)
        if not self._committing.finishes_gradients:
            return attempt, FINE
        self._runner.phase = "clip"
        try:
            self._committing.finish_gradients()
        except Exception as error:
            attempt = Attempt(None, self._failure_in(error))
        return attempt, self._ranks.settle(attempt.status)

    def _commit(self) -> None:
        try:
            self._committing.commit()
        except Exception:
            self._tell_the_others()
            raise
        self._remedies.note_success(self._window)
        self._window.clear()
        self._start.forget_loss_values()
        self._log.steps += 1
        self._size.note_clean_step(may_grow=not self._ranks.sharded)

    # Failures.

    def _failure_in(self, error: Exception) -> MemoryFailure:
        """An out-of-memory error in words; all others are raised again."""
        kind = kind_of(error)
        if kind != OUT_OF_MEMORY or is_half_done(error):
            self._tell_the_others()
            if kind == STICKY:
                add_note(
                    error,
                    "vramlens: the CUDA context is broken, so nothing can be retried in this "
                    "process",
                )
            raise error
        if self._ranks.sharded:
            self._stopping.in_collectives(error, self._window[-1])
            raise error
        failure = failure_of(error, self._runner.phase)
        self._remedies.note_failure(failure)
        let_go(error)
        return failure

    def _tell_the_others(self) -> None:
        """Has the other ranks stop with words."""
        with contextlib.suppress(PeerFailed):
            self._ranks.settle(BROKEN)

    def _recover(self, failure: MemoryFailure | None) -> None:
        """Rolls back, and finds what to do differently; raises when there is nothing."""
        self._roll_back()
        agreed = self._ranks.least(self._size_after(failure))
        if agreed == _STOP:
            self._stopping.without_remedy(failure, self.micro_batch)
        self._runner.around = self._remedies.around()
        if agreed not in (_UNCHANGED, self.micro_batch):
            where = "" if failure is not None else " on another rank"
            self._size.change(agreed, f"out of memory{where}")
        self._size.note_failed_step()

    def _size_after(self, failure: MemoryFailure | None) -> int:
        """The samples of a part from now on, the next remedy in force; ``_UNCHANGED``, or
        ``_STOP`` where there is none.
        """
        if failure is None:
            return _UNCHANGED
        if failure.phase == "clip":
            return self._size_after_clipping()
        words = f"out of memory in the {failure.phase}{size_words(failure.tried_bytes)}"
        self._note("failure", words)
        self._check_bytes()
        action = self._remedies.next(self._window, self._runner.model)
        if action is None:
            return _STOP
        self._size.note_failed_part(action.failed_size)
        return action.micro_batch or _UNCHANGED

    def _size_after_clipping(self) -> int:
        """The same where clipping failed: it does with less room, unless that was tried often
        enough.
        """
        self._clip_failures += 1
        self._note(
            "failure",
            "out of memory while gradients were unscaled or clipped; the batch runs again",
        )
        self._committing.ease()
        return _STOP if self._clip_failures > _MOST_CLIP_FAILURES else _UNCHANGED

    def _roll_back(self) -> None:
        try:
            self._start.restore()
        except BuffersLost as error:
            self._tell_the_others()
            self._stopping.without_buffers(error)
            raise
        self._committing.forget()
        torch.clear_autocast_cache()
        let_go_of_the_last()
        self._meter.release()

    def _after_a_failed_check(self) -> None:
        """Called where a check ran out of memory, which is not a failure of training."""
        self._log.count_caught()
        self._meter.release()

    def _check_bytes(self) -> None:
        """Says so when a failed attempt's bytes have not come back."""
        leftover = self._start.leftover_bytes()
        if leftover:
            self._note(
                "held",
                f"{format_size(leftover)} of the failed attempt was not freed: something "
                "outside of it keeps this memory",
                size=leftover,
            )


def guard(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: Any = None,
    **options: Any,
) -> Guard:
    """A guard for training steps: ``loss = guard.step(batch, loss_fn)`` in place of forward,
    backward and step.

    Args:
        model: what is trained; wrapped in ``DistributedDataParallel`` or spread by FSDP where
            several ranks train it.
        optimizer: stepped once a commit, its gradients then set to None; None: the caller steps,
            and zeroes.
        scaler: a ``torch.amp.GradScaler``.
        options: those of ``GuardOptions``: threshold, count_fn, split, strict, verify, order, clip,
            on_change, micro_batch, grow_after, step_backup, timeout_s, meter.

    Raises:
        UsageError: nothing to train, or an argument that does not exist or is out of range.
    """
    names = {field.name for field in dataclasses.fields(GuardOptions)}
    unknown = sorted(options.keys() - names)
    if unknown:
        raise UsageError(f"guard: there is no option {unknown[0]!r}: {', '.join(sorted(names))}")
    return Guard(model, optimizer, scaler, GuardOptions(**options))
