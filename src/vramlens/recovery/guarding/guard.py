"""The guard: training steps that survive out of memory, with the gradients that they would have
had.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import weakref
from typing import TYPE_CHECKING, Any

from vramlens.capture.warn import say
from vramlens.errors import UsageError
from vramlens.recovery.failures import (
    OUT_OF_MEMORY,
    STICKY,
    Failure,
    failure_of,
    kind_of,
    let_go,
    let_go_of_the_last,
)
from vramlens.recovery.guarding.commit import Committing, StepOptions, is_half_done
from vramlens.recovery.guarding.guard_options import GuardOptions
from vramlens.recovery.guarding.guard_story import (
    FOREIGN,
    NO_OPTIMIZER,
    Event,
    GuardReport,
    Stop,
    Story,
    size_words,
)
from vramlens.recovery.guarding.rank_agreement import BROKEN, FAILED, FINE, PeerFailed, ranks_of
from vramlens.recovery.guarding.remedies import Remedies
from vramlens.recovery.guarding.stop_reasons import (
    stop_in_collectives,
    stop_of_buffers,
    stop_outside,
    stop_without_remedy,
)
from vramlens.recovery.losses.loss_form import PlainValues
from vramlens.recovery.losses.part_losses import LossFunction, misfit
from vramlens.recovery.meters import meter_of
from vramlens.recovery.splitting.batch_parts import CannotSplit, equal_parts
from vramlens.recovery.splitting.learned_splits import learned_micro_batch, write_split
from vramlens.recovery.splitting.split_proofs import SplitProofs, Surroundings
from vramlens.recovery.training.attempts import Call, Runner, bounds_of
from vramlens.recovery.training.rollback import Buffers, BuffersLost, Gradients, RandomState
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_SLACK_BYTES = 2 * 1024**2


class Guard:
    """Runs training steps; made by ``vramlens.guard``, which describes the arguments.

    Attributes:
        micro_batch: the most samples that a part has now; None: batches are run whole.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        scaler: Any,
        options: GuardOptions,
    ) -> None:
        _refuse_what_is_none(model, optimizer)
        self._model, self._optimizer, self._options = model, optimizer, options
        self._named: list[tuple[str, torch.nn.Parameter]] = []
        self._parameters: list[torch.nn.Parameter] = []
        self._find_parameters()
        if not self._parameters:
            raise UsageError(
                "guard: the model has no parameter that requires a gradient: there is nothing to train"
            )
        self._devices = sorted({p.device for p in self._parameters}, key=str)
        self._meter = options.meter or meter_of(self._devices[0])
        self._ranks = ranks_of(model, options.timeout_s)
        self._story = Story()
        self._steps = self._failures = self._recovered = self._calls_seen = self._elsewhere = (
            self._caught
        ) = 0
        self._failed_before = self._failed_requests()
        self._stop_reason: Stop | None = None
        self._clean, self._wait = 0, options.grow_after
        self._window: list[Call] = []
        self._buffers = Buffers(model)
        self._model_values = PlainValues(None, model)
        self._seen_losses: weakref.WeakKeyDictionary[Any, PlainValues] = weakref.WeakKeyDictionary()
        self._loss_values: list[PlainValues] = []
        self._random: RandomState | None = None
        self._before: Gradients | None = None
        self._start_bytes = 0
        self.micro_batch = (
            learned_micro_batch() if options.micro_batch is None else options.micro_batch
        )
        self._failed_size: int | None = None
        self._clip_failures = 0
        self._runner = Runner(self._ranks.inside(model), self._parameters, scaler)
        self._committing = Committing(
            optimizer, scaler, self._parameters,
            options=StepOptions(options.clip, options.step_backup), meter=self._meter, note=self._note,
        )  # fmt: skip
        around = Surroundings(
            model, self._named, self._devices, self._after_a_failed_check, self._committing.scale, self._note,
            self._ranks.least if self._ranks.sharded else None,
        )  # fmt: skip
        self._proofs = SplitProofs(around, options)
        self._remedies = Remedies(around, options, meter=self._meter, proofs=self._proofs)
        self._note_the_beginning()

    def _find_parameters(self) -> None:
        """All that require a gradient now, of the model and of the optimizer; they may be frozen
        and unfrozen.
        """
        self._named[:] = [
            (name, p) for name, p in self._model.named_parameters() if p.requires_grad
        ]
        seen = {id(p) for _, p in self._named}
        groups = self._optimizer.param_groups if self._optimizer is not None else ()
        for p in (p for group in groups for p in group["params"]):
            if (
                p.requires_grad and id(p) not in seen
            ):  # a loss's own: its gradient is rolled back as well
                seen.add(id(p))
                self._named.append(("a parameter of the optimizer", p))
        self._parameters[:] = [parameter for _, parameter in self._named]

    def _note_the_beginning(self) -> None:
        """Says what is out of the ordinary."""
        if self.micro_batch is not None:
            self._note(
                "split",
                f"begins with parts of at most {counted(self.micro_batch, 'sample')}, as learned before",
            )
        own = {id(p) for p in self._model.parameters()}
        if self._optimizer is None:
            self._note("note", NO_OPTIMIZER)
        elif own.isdisjoint(
            id(p) for group in self._optimizer.param_groups for p in group["params"]
        ):
            self._note("note", FOREIGN)
            say(f"guard: {FOREIGN}")
        if not self._model.training:
            self._note(
                "note",
                "the model is in eval mode: dropout is off and running statistics stay: model.train()?",
            )
            say("guard: the model is in eval mode; model.train() before training")

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
        if self._stop_reason is not None:
            raise UsageError(
                f"guard: it has stopped: {self._stop_reason.reason}: {self._stop_reason.next}"
            )
        try:
            if not self._window:
                self._begin()
            call = Call(batch, loss_fn, scale)
            self._window.append(call)
            self._calls_seen += 1
            self._note_values(loss_fn)
            self._admit(call)
            loss = self._until_done(call, commit)
            if commit:
                self._commit()
        except BaseException as error:
            self._window.clear()
            self._committing.forget()
            if self._stop_reason is None and kind_of(error) == OUT_OF_MEMORY:
                self._stop_outside(error)
            if isinstance(error, TypeError) and (wrong := misfit(loss_fn)):
                raise UsageError(f"guard.step: {wrong}") from error
            raise
        return loss

    def verify(self, batch: Any, loss_fn: LossFunction) -> Any:
        """Checks on a batch (a few of its samples) that a split changes nothing; gives what was
        found, never raises.

        Called by itself before the first split; call it earlier to know earlier.
        """
        call = Call(batch, loss_fn)
        call.split(self._options.split)
        return self._proofs.prove(call, self._runner.model)

    def report(self) -> GuardReport:
        """What has happened so far; print it."""
        return GuardReport(
            self._steps, self._failures, self._recovered, self.micro_batch if self._proofs.splitting else None,
            self._calls_seen, self._runner.forwards,
            self._stop_reason, self._story.events, self._story.left_out,
            elsewhere=self._elsewhere,
            caught=self._caught_requests(),
        )  # fmt: skip

    def __repr__(self) -> str:
        return self.report().headline

    def state_dict(self) -> dict[str, Any]:
        """What was learned, for a checkpoint: plain numbers and names."""
        return {
            "micro_batch": self.micro_batch,
            "failed_size": self._failed_size,
            **self._remedies.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with what was learned before."""
        self.micro_batch, self._failed_size = state.get("micro_batch"), state.get("failed_size")
        self._remedies.load_state(state)
        self._runner.around = self._remedies.around()

    # What a step is made of.

    def _begin(self) -> None:
        """Notes how everything is, before the first batch of a commit."""
        self._find_parameters()
        self._committing.prepare()
        self._random = RandomState(self._devices)
        self._ranks.share_buffers(self._buffers.tensors())
        self._buffers.save()
        self._model_values.note()
        self._before = Gradients(self._parameters)
        self._start_bytes = self._meter.allocated_bytes()
        self._clip_failures = 0
        self._loss_values.clear()

    def _note_values(self, loss_fn: LossFunction) -> None:
        """Keeps the plain values that a loss function reads, so that a repeated call finds them
        as they were.
        """
        if any(call.loss_fn is loss_fn for call in self._window[:-1]):
            return
        values = None
        with contextlib.suppress(
            TypeError
        ):  # not everything that can be called can be hashed, or held weakly
            values = self._seen_losses.get(loss_fn)
        if values is None:
            values = PlainValues(loss_fn, None)
            with contextlib.suppress(TypeError):
                self._seen_losses[loss_fn] = values
        values.note()
        self._loss_values.append(values)

    def _until_done(self, call: Call, commit: bool) -> torch.Tensor:
        """Tries until it works; goes back to the beginning of the window after each failure."""
        waiting = [call]
        met = elsewhere = False
        while True:
            loss, failure = self._attempt(waiting)
            confirmed = failure is not None or self._is_confirmed(waiting)
            status = self._ranks.settle(FINE if failure is None and confirmed else FAILED)
            if status == FINE and commit:
                failure, status = self._finish_gradients()
            if status == FINE:
                assert loss is not None
                self._recovered += met
                self._elsewhere += elsewhere and not met
                return loss
            if status == BROKEN:
                raise PeerFailed(
                    "guard: another rank failed with an error that is not out of memory: see its log"
                )
            met = met or failure is not None
            elsewhere = elsewhere or (failure is None and confirmed)
            self._failures += failure is not None
            self._recover(failure)
            waiting = list(self._window)

    def _attempt(self, calls: list[Call]) -> tuple[torch.Tensor | None, Failure | None]:
        """The last call's loss, or the failure in words: the exception and its frames are gone
        when it returns.
        """
        loss = None
        try:
            with self._ranks.attempt():
                for call in calls:
                    loss = self._run(call)
            self._runner.phase = "reduction"
            self._ranks.make_room(self._parameters)
            return loss, None
        except Exception as error:
            failure = self._failure_in(error)
        return None, failure

    def _failure_in(self, error: Exception) -> Failure:
        """An out-of-memory error in words; all others are raised again."""
        kind = kind_of(error)
        if kind != OUT_OF_MEMORY or is_half_done(error):
            self._tell_the_others()
            if kind == STICKY and hasattr(error, "add_note"):
                error.add_note(
                    "vramlens: the GPU's context is lost: nothing can be retried in this process"
                )
            raise error
        if self._ranks.sharded:
            self._abort_sharded(error)
            raise error
        failure = failure_of(error, self._runner.phase)
        self._remedies.note_failure(failure)
        let_go(error)
        return failure

    def _tell_the_others(self) -> None:
        """Has the other ranks stop with words."""
        with contextlib.suppress(PeerFailed):
            self._ranks.settle(BROKEN)

    def _is_confirmed(self, calls: list[Call]) -> bool:
        """Whether the parts of all calls did what was proven, and changed no buffer that they
        should not.
        """
        model = self._runner.model
        if self._remedies.undo_recomputation(
            self._buffers.changed, self._model_values.changed_holders
        ):
            return False
        confirmed = [self._proofs.confirmed(call, model, self._buffers.changed) for call in calls]
        return all(confirmed)

    def _finish_gradients(self) -> tuple[Failure | None, int]:
        """Averages over ranks, unscales and clips; a failure is one of the batch, as no
        parameter has changed yet.
        """
        self._ranks.reduce(self._parameters)
        if not self._committing.finishes_gradients:
            return None, FINE
        failure = None
        self._runner.phase = "clip"
        try:
            self._committing.finish_gradients()
        except Exception as error:
            failure = self._failure_in(error)
        return failure, self._ranks.settle(FINE if failure is None else FAILED)

    def _run(self, call: Call) -> torch.Tensor:
        size = self.micro_batch
        call.size = call.parts_seen = None
        if (size is None and not self._ranks.sharded) or (call.refusal and not self._ranks.sharded):
            return self._runner.whole(call)
        try:
            samples = call.split(self._options.split)
        except CannotSplit as error:
            self._note("refusal", f"does not split: {error}")
            return self._runner.whole(call)
        bounds = bounds_of(call, size or samples.count)
        if self._ranks.sharded:
            parts = self._ranks.parts(len(bounds), samples.count)
            bounds = equal_parts(samples.count, parts)
        if len(bounds) == 1:
            return self._runner.whole(call)
        call.size = bounds[0][1] - bounds[0][0]
        weights = self._proofs.weights(call, self._runner.model)
        if weights is None:
            call.size = None
            return self._runner.whole(call)
        return self._runner.split(call, bounds, weights)

    def _recover(self, failure: Failure | None) -> None:
        """Rolls back, and finds what to do differently; raises when there is nothing."""
        self._roll_back()
        size: int | None = None
        stop = False
        if failure is not None and failure.phase == "clip":
            stop = self._eased_clipping()
        elif failure is not None:
            self._note(
                "failure", f"out of memory in the {failure.phase}{size_words(failure.tried_bytes)}"
            )
            self._check_bytes()
            action = self._remedies.next(self._window, self.micro_batch, self._runner.model)
            stop = action is None
            size = action.micro_batch if action is not None else None
            if action is not None and action.failed_size is not None:
                self._failed_size = min(action.failed_size, self._failed_size or action.failed_size)
        never = 1 << 62
        agreed = self._ranks.least(-1 if stop else size or never)
        if agreed == -1:
            self._stop(failure)
        self._runner.around = self._remedies.around()
        if agreed < never and agreed != self.micro_batch:
            self._set_size(
                agreed, "out of memory" if failure is not None else "out of memory on another rank"
            )
        grow_after = self._options.grow_after
        self._clean, self._wait = 0, grow_after if self._wait <= grow_after else self._wait

    def _eased_clipping(self) -> bool:
        """Has clipping do with less room; whether that was tried often enough."""
        self._clip_failures += 1
        self._note(
            "failure",
            "out of memory while gradients were unscaled or clipped: the batch is run again",
        )
        self._committing.ease()
        return self._clip_failures > 2

    def _roll_back(self) -> None:
        assert self._before is not None
        assert self._random is not None
        self._before.restore()
        self._model_values.restore()
        for values in self._loss_values:
            values.restore()
        self._restore_buffers()
        self._random.restore()
        self._committing.forget()
        torch.clear_autocast_cache()
        let_go_of_the_last()
        self._meter.release()

    def _restore_buffers(self) -> None:
        try:
            self._buffers.restore()
        except BuffersLost as error:
            self._tell_the_others()
            self._stop_reason = stop_of_buffers(self._steps + 1, str(error))
            raise

    def _caught_requests(self) -> int:
        """Failed requests that were none of this guard's failures: as the allocator counts them,
        if it does.
        """
        counted_by_allocator = self._failed_requests() - self._failed_before - self._failures
        return max(self._caught, counted_by_allocator)

    def _failed_requests(self) -> int:
        """Requests that the allocator has refused, whoever caught that; 0 where nobody counts."""
        return int(getattr(self._meter, "failed_requests", int)())

    def _after_a_failed_check(self) -> None:
        """Called where a check ran out of memory, which is no failure of training."""
        self._caught += 1
        self._meter.release()

    def _check_bytes(self) -> None:
        """Says so when a failed attempt's bytes have not come back."""
        left = self._meter.allocated_bytes() - self._start_bytes
        if left > _SLACK_BYTES:  # in cycles, perhaps: collecting takes a while, so only then
            gc.collect()
            self._meter.release()
            left = self._meter.allocated_bytes() - self._start_bytes
        if left > _SLACK_BYTES:
            self._note(
                "held",
                f"{format_size(left)} of the failed attempt did not come back: something outside of it keeps them",
                size=left,
            )

    def _stop(self, failure: Failure | None) -> None:
        write_split(out_of_memory=True, micro_batch=self.micro_batch)
        text = failure.text if failure is not None else "out of memory on another rank"
        if failure is not None:
            self._note("failure", f"no remedy left: {self._remedies.exhausted()}")
        self._stop_reason = stop_without_remedy(
            self._steps + 1, self._remedies.way_out() if failure else None
        )
        *lines, last = str(self.report()).splitlines()
        raise torch.OutOfMemoryError(
            "\n".join([f"vramlens guard: {lines[0]}", *lines[1:], f"PyTorch: {text}", last])
        )

    def _stop_outside(self, error: BaseException) -> None:
        """Tells the report of a failure where nothing is repeated: in the step itself, or around
        it.
        """
        self._failures += 1
        text, self._stop_reason = stop_outside(
            self._steps + 1, is_half_done(error), failure_of(error).tried_bytes
        )
        self._note("failure", text)
        if hasattr(error, "add_note"):
            error.add_note(
                f"vramlens guard: {self.report().headline}\nnext: {self._stop_reason.next}"
            )

    def _abort_sharded(self, error: BaseException) -> None:
        """A model that is spread over ranks cannot be recovered in the middle: leaves what a
        restart needs.
        """
        samples = self._window[-1].samples
        half = (
            None if samples is None else max(1, -(-(self._window[-1].size or samples.count) // 2))
        )
        write_split(out_of_memory=True, micro_batch=half)
        self._note(
            "refusal",
            "out of memory in the middle of collectives: not recovered; restart with parts of"
            f" {half or 'fewer'} samples (VRAMLENS_MICRO_BATCH={half or '...'})",
        )
        self._failures += 1
        self._stop_reason = stop_in_collectives(self._steps + 1, half)
        if hasattr(error, "add_note"):
            error.add_note(str(self.report()))

    # Between steps.

    def _commit(self) -> None:
        try:
            self._committing.commit()
        except Exception:
            self._tell_the_others()
            raise
        self._remedies.note_success(self._window)
        self._window.clear()
        self._loss_values.clear()
        self._steps += 1
        self._clean += 1
        if self.micro_batch is not None and self._clean >= self._wait and not self._ranks.sharded:
            self._grow()

    def _admit(self, call: Call) -> None:
        """Splits before a batch whose predicted peak passes the threshold."""
        size = self._remedies.admitted(call, self.micro_batch, self._runner.model)
        if size is not None:
            self._set_size(size, "the predicted peak passes the threshold")

    def _grow(self) -> None:
        """Tries larger parts after clean steps; waits ten times as long where that has failed."""
        assert self.micro_batch is not None
        failed = self._failed_size
        self._clean = 0
        if failed is None or failed - self.micro_batch <= max(1, self.micro_batch // 8):
            self._wait = max(self._wait, 1) * 10
            self._failed_size = None if failed is None else failed * 2
            if failed is not None:
                return
        size = self.micro_batch * 2 if failed is None else (self.micro_batch + failed) // 2
        self._set_size(size, f"{self._options.grow_after} clean steps", kind="grow")

    def _set_size(self, size: int, why: str, kind: str = "split") -> None:
        before, self.micro_batch = self.micro_batch, size
        write_split(micro_batch=size)
        earlier = f" (before: {before:,})" if before else ""
        self._note(
            kind,
            f"{why}: batches run in parts of at most {counted(size, 'sample')} from now on{earlier}",
        )
        if self._options.on_change is not None:
            self._options.on_change(before, size, why)

    def _note(
        self, kind: str, text: str, changes_numbers: bool = False, size: int | None = None
    ) -> None:
        self._caught += kind == "caught"
        if kind == "step":  # a failure in the optimizer's step, which is repeated
            self._failures += 1
            self._recovered += 1
        self._story.add(Event(self._steps + 1, kind, text, changes_numbers, size))


def _refuse_what_is_none(model: object, optimizer: object) -> None:
    """Refuses arguments that are no model or no optimizer, with what they are."""
    if not hasattr(model, "named_parameters"):
        raise UsageError(
            f"guard(model, optimizer): the first is {_kind(model)}{_instead(optimizer)}"
        )
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        is_several = isinstance(optimizer, (list, tuple, dict))
        several = (
            ": with several, guard(model, None), and step them after guard.step"
            if is_several
            else ""
        )
        raise UsageError(
            f"guard(model, optimizer): the second is {_kind(optimizer)}, not an optimizer{several}"
        )


def _kind(thing: object) -> str:
    """What something is, with its article: ``an SGD``, ``a generator``."""
    name = type(thing).__name__
    return f"{'an' if name[0] in 'AEIOU' or name[:2].isupper() else 'a'} {name}"


def _instead(optimizer: object) -> str:
    return ": swapped?" if hasattr(optimizer, "named_parameters") else ", not a model"


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
    known = {field.name for field in dataclasses.fields(GuardOptions)}
    if unknown := sorted(options.keys() - known):
        raise UsageError(f"guard: there is no option {unknown[0]!r}: {', '.join(sorted(known))}")
    return Guard(model, optimizer, scaler, GuardOptions(**options))
