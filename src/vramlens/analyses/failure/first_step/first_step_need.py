"""The rest of a first step, as a range: from the model's repeated blocks, of which the forward had
done some.

Nothing of this step was seen before, so what comes is bounded: the rest of the forward by the
blocks that are done, the backward pass by the parameters and the largest tensors, the optimizer by
what AdamW keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.optimizer_state import most_states, parameter_bytes
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.attribution.steps import optimizer_stacks
from vramlens.analyses.attribution.trainable import stepped_bytes, trainable_bytes
from vramlens.analyses.attribution.training import LEAST_KEPT_SHARE, Training, pass_starts
from vramlens.analyses.evaluation_passes import keeping_passes
from vramlens.analyses.failure.first_step.forward_progress import (
    Progress,
    block_runs,
    progress_of,
    rows_of_step,
    step_start,
)
from vramlens.analyses.failure.first_step.optimizer_lists import rest_of_list
from vramlens.analyses.failure.need import BLOCKS, Need
from vramlens.trace import NO_STACK, OutOfMemory
from vramlens.units import format_size

_HOLES = 1.12
"""What is reserved may be so much more than what is alive."""
GRADIENTS_BESIDE = 0.25
"""Of the activations: at the fullest moment of a backward pass their gradients lie beside them."""
_PASSES = (Phase.FORWARD, Phase.BACKWARD, Phase.EVALUATION)
_PILED_UP = 0.25
"""Of a step's activations: so many from before its last backward pass were not given up to it."""
_LEAST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class StepBounds:
    """The least and the most that a first step needs, as a line over the share of its batch.

    Attributes:
        low_fixed, low_growing: the least: what stays for any batch, and what grows with it.
        high_fixed, high_growing: the most.
        progress: how far the forward pass is; None where it is done.
    """

    low_fixed: int
    low_growing: int
    high_fixed: int
    high_growing: int
    progress: Progress | None

    @property
    def low_bytes(self) -> int:
        """The least for the whole batch."""
        return self.low_fixed + self.low_growing

    @property
    def high_bytes(self) -> int:
        """The most for the whole batch."""
        return self.high_fixed + self.high_growing

    def with_known(self, low_bytes: int, high_bytes: int) -> StepBounds:
        """The bounds, where it is known what the whole batch needs."""
        low_fixed, high_fixed = min(self.low_fixed, low_bytes), min(self.high_fixed, high_bytes)
        return replace(
            self,
            low_fixed=low_fixed,
            low_growing=low_bytes - low_fixed,
            high_fixed=high_fixed,
            high_growing=high_bytes - high_fixed,
        )

    def surely_fitting_share(self, capacity_bytes: int) -> float:
        """The share of the batch that fits even if the step needs the most; 0 where none does."""
        return _share(capacity_bytes - self.high_fixed, self.high_growing)

    def possibly_fitting_share(self, capacity_bytes: int) -> float:
        """The share of the batch above which nothing fits."""
        return _share(capacity_bytes - self.low_fixed, self.low_growing)


def _share(room_bytes: int, growing_bytes: int) -> float:
    return min(1.0, max(0.0, room_bytes / max(1, growing_bytes)))


def need_of_first_step(view: Attribution, request: OutOfMemory) -> Need | None:
    """The need of a failed step that no earlier one is like; None where nothing bounds it."""
    allocations = view.device.allocations
    alive = allocations.alive_after(request.event)
    sizes = allocations.requested_bytes[alive]
    is_in_optimizer = _phase_of(view, request) == Phase.OPTIMIZER
    if not is_in_optimizer and _passes_pile_up(view, alive, request.event):
        return _need_of_many_passes(int(sizes.sum()) + request.size_bytes)
    if parameter_bytes(view, alive) < _LEAST_BYTES:
        return None
    if is_in_optimizer:
        return _need_of_optimizer(view, alive, request)
    bounds = bounds_of_first_step(view, request)
    if bounds is None:
        return None
    low, progress = bounds.low_bytes, bounds.progress
    return Need(
        peak_reserved_bytes=None,
        low_bytes=low,
        high_bytes=max(bounds.high_bytes, low),
        basis=BLOCKS,
        done_share=None if progress is None else round(progress.done / progress.blocks, 3),
        confidence="estimated",
        reason=""
        if progress is None
        else _words(progress, is_first=view.training == Training.UNKNOWN),
        floor_bytes=low,
    )


def _need_of_many_passes(least_bytes: int) -> Need:
    """The need of a step of which each pass keeps its memory: nobody knows how many are to come."""
    return Need(
        peak_reserved_bytes=None,
        low_bytes=least_bytes,
        high_bytes=None,
        basis=BLOCKS,
        confidence="estimated",
        reason="each pass of this step keeps what it computed, and more passes may follow",
        floor_bytes=least_bytes,
    )


def bounds_of_first_step(view: Attribution, request: OutOfMemory) -> StepBounds | None:
    """The bounds of a step that failed in its forward or backward pass; None where nothing
    bounds it.
    """
    allocations = view.device.allocations
    alive = allocations.alive_after(request.event)
    sizes = allocations.requested_bytes[alive]
    parameters = parameter_bytes(view, alive)
    phase = _phase_of(view, request)
    if parameters < _LEAST_BYTES or phase == Phase.OPTIMIZER:
        return None
    if _passes_pile_up(view, alive, request.event):
        return None
    activations = sizes[~_lasts(view, alive)]
    activation_bytes = int(activations.sum())
    lasting = int(sizes.sum()) - activation_bytes
    progress = None
    if phase == Phase.FORWARD:
        progress = progress_of(view, alive, _lasts(view, alive), request)
        if progress is None:
            return None
    forward = activation_bytes + request.size_bytes
    least_to_come = progress.low_bytes if progress is not None else 0
    most_forward = forward + (progress.high_bytes if progress is not None else 0)
    # The backward pass wants workspaces as the forward pass did, which are gone by now.
    asked_before = allocations.requested_bytes[rows_of_step(view, request.event)]
    largest = max(int(asked_before.max(initial=0)), request.size_bytes)
    if only_evaluates(view, request.event):
        most_fixed, most_growing = lasting, most_forward + largest
    else:
        gradient_bytes = trainable_bytes(view, alive, request.event)
        states = 0 if view.phases.optimizer_ran else most_states(view)
        state_bytes = states * stepped_bytes(view, alive, request.event)
        most_fixed = lasting + gradient_bytes + state_bytes
        most_growing = most_forward + _gradients_beside(most_forward, progress) + 2 * largest
    return StepBounds(
        low_fixed=lasting,
        low_growing=forward + least_to_come,
        high_fixed=int(most_fixed * _HOLES),
        high_growing=int(most_growing * _HOLES),
        progress=progress,
    )


def _gradients_beside(forward_bytes: int, progress: Progress | None) -> int:
    """The most that gradients of activations take beside them: where blocks are alike, those of two."""
    most_bytes = int(GRADIENTS_BESIDE * forward_bytes)
    if progress is None or progress.alike_bytes is None:
        return most_bytes
    return min(most_bytes, 2 * progress.alike_bytes)


def _words(progress: Progress, *, is_first: bool) -> str:
    forward_pass = "the first forward pass" if is_first else "this forward pass"
    block = f"block {progress.done + 1} of {progress.blocks}"
    return f"{forward_pass} had reached {progress.path}, {block}"


def _passes_pile_up(view: Attribution, alive: NDArray[np.int64], event: int) -> bool:
    """Whether each pass of this step keeps its activations, so that one tells nothing of how many
    will be kept: evaluation with gradients, or gradients of gradients.
    """
    evaluating = keeping_passes(view, np.flatnonzero(view.modules.eval_with_grad))
    if sum(bool(np.isin(rows, alive).any()) for rows, _ in evaluating) > 1:
        return True
    if _keeps_earlier_runs(view, alive, event):
        return True
    ended = view.phases.ends_before(event)
    if not len(ended):
        return False
    in_passes = np.isin(view.phases.phase[alive], _PASSES)
    is_activation = in_passes & ~_lasts(view, alive)
    sizes = view.device.allocations.requested_bytes[alive] * is_activation
    born = view.device.allocations.born[alive]
    is_earlier = (born >= step_start(view, event)) & (born < ended[-1])
    return bool(sizes[is_earlier].sum() > _PILED_UP * sizes.sum())


def _keeps_earlier_runs(view: Attribution, alive: NDArray[np.int64], event: int) -> bool:
    """Whether the block under way ran before in this step, and what it made then waits for a
    backward pass: crops, segments of a text, the turns of a loop. How many follow, nobody knows.
    """
    sizes = view.device.allocations.requested_bytes
    return any(
        sizes[rows[np.isin(rows, alive)]].sum() >= LEAST_KEPT_SHARE * sizes[rows].sum()
        for rows in block_runs(view, event)[:-1]
    )


def unseen_optimizer_bytes(view: Attribution, event: int) -> int:
    """What an optimizer may still make, where none has worked yet."""
    if view.phases.optimizer_ran or not len(view.phases.span_start):
        return 0
    alive = view.device.allocations.alive_after(event)
    return most_states(view) * stepped_bytes(view, alive, event)


def _lasts(view: Attribution, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether an allocation stays beyond the step: parameters, gradients, state; without training
    what earlier passes left.
    """
    category = view.categories.category[rows]
    kinds = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE, Category.WORKSPACE)
    lasting = np.isin(category, kinds)
    lasting |= view.device.allocations.born[rows] < 0
    if view.training == Training.ABSENT:
        starts = pass_starts(view.modules, np.flatnonzero(view.modules.marked))
        lasting |= rows < starts[-1:].max(initial=0)
    return np.asarray(lasting)


def _phase_of(view: Attribution, request: OutOfMemory) -> Phase:
    stacks = view.trace.stacks
    if (
        request.stack == NO_STACK
        or request.stack >= len(stacks)
        or not stacks.has_python[request.stack]
    ):
        return Phase.BACKWARD
    if optimizer_stacks(stacks)[request.stack]:
        return Phase.OPTIMIZER
    births = np.flatnonzero(view.device.allocations.born < request.event)
    spans = view.phases
    inside = (spans.span_start < request.event) & (request.event <= spans.span_end)
    if inside.any() and len(births) and view.phases.phase[births[-1]] == Phase.BACKWARD:
        return Phase.BACKWARD
    return Phase.FORWARD


def only_evaluates(view: Attribution, event: int) -> bool:
    """Whether no backward pass follows the forward pass under way: the recording shows no training, or
    the model is in eval mode, or gradients are disabled.
    """
    if view.training == Training.ABSENT:
        return True
    modules = view.modules
    marked = np.flatnonzero(modules.marked & (view.device.allocations.born < event))
    is_last = modules.eval_with_grad[marked[-1:]] | modules.without_grad[marked[-1:]]
    return bool(is_last.any())


def _need_of_optimizer(view: Attribution, alive: NDArray[np.int64], request: OutOfMemory) -> Need:
    """What is left of the first state that an optimizer makes."""
    allocations = view.device.allocations
    sizes = allocations.requested_bytes[alive]
    state_bytes = int(sizes[view.phases.phase[alive] == Phase.OPTIMIZER].sum())
    live = int(sizes.sum())
    stepped = stepped_bytes(view, alive, request.event)
    missing_bytes = max(request.size_bytes, most_states(view) * stepped - state_bytes)
    rest_bytes = rest_of_list(view, request)
    low = live + max(request.size_bytes, rest_bytes)
    return Need(
        peak_reserved_bytes=None,
        low_bytes=low,
        high_bytes=int(
            (max(live + stepped, view.device.requested.peak_bytes) + missing_bytes + stepped)
            * _HOLES
        ),
        basis=BLOCKS,
        confidence="estimated",
        reason=_words_of_optimizer(request, rest_bytes),
        floor_bytes=low,
    )


def _words_of_optimizer(request: OutOfMemory, rest_bytes: int) -> str:
    """What the optimizer was doing, in one sentence."""
    if rest_bytes <= request.size_bytes:
        return "the optimizer was creating its state for the first time"
    return (
        f"the optimizer works on all parameters at once and still had {format_size(rest_bytes)}"
        " of their tensors to make"
    )
