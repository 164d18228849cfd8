"""Losses that are added up before one backward pass: the activations of all their passes wait for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.trainable import trainable_bytes
from vramlens.analyses.attribution.training import Training, pass_starts
from vramlens.analyses.failure.unconsumed_forward import waiting_passes
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.units import format_size

LOSS_FRAME = re.compile(
    r"torch[/\\]nn[/\\](?:modules[/\\]loss\.py:|functional\.py:"
    r"(?:cross_entropy|kl_div|binary_cross_entropy\w*|\w+_loss)$)"
)
"""PyTorch's losses."""
_FEWEST_PASSES = 3
"""Forward passes since the last backward pass, the one under way counted: two losses of one step (two
views, a student's two outputs) are usual.
"""
_LEAST_OF_A_PASS = 0.05
"""Of what is in use, at each pass: a recurrent model's time steps, of which gradients go from one to the
next, are tens or hundreds of small ones (35 of the usual truncated back-propagation are 2.9% each).
"""
_LEAST_SHARE = 0.5
"""Of what is in use, at the activations of these passes together."""
_LARGEST_NUMBER = 512
"""Bytes of a loss that the program keeps for its report; more may be a state, or an encoding that a loss
to come compares with others.
"""
_MOST_BESIDE_STATE = 4
"""A rollout's next input has the last output in it (with forcings, or noise): it is as large as that, or
some times so.
"""


def losses_before_backward(scene: Scene) -> Iterator[Finding]:
    """The activations of forward passes that ended in a loss each, and that no backward pass has gone
    through when memory runs out, if nothing shows that one pass needs another.
    """
    passes = _waiting_passes(scene)
    if passes is None or _goes_on(scene, passes):
        return
    heap, sizes = scene.advice_heap, scene.device.allocations.requested_bytes
    rows = passes.activations
    size_bytes = scene.bytes_of(rows)
    is_small = passes.bytes_of_each(sizes[rows]) < _LEAST_OF_A_PASS * heap.requested_bytes
    if is_small.any() or size_bytes < _LEAST_SHARE * heap.requested_bytes:
        return
    saved_bytes = size_bytes - _gradients_to_come(scene)
    if saved_bytes <= 0:
        return
    count = len(passes.loss_ends)
    yield Finding(
        id="losses_before_backward",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are activations of {count} forward passes that"
        " have their losses already, and wait for one backward pass",
        bytes=saved_bytes,
        place=scene.view.place_of_block(passes.loss_rows[-1]),
        evidence=(
            f"{len(passes.starts)} forward passes began since the last backward pass"
            if passes.has_backward
            else f"{len(passes.starts)} forward passes began, and no backward pass",
        ),
        fix="if these losses are only added up, and no state goes from one pass to the next, call"
        " backward() on each loss (times its weight) as soon as it is there, instead of once on"
        f" their sum: the gradients add up to the same (about {format_size(saved_bytes)} less)",
        extent=scene.extent(rows),
    )


@dataclass(frozen=True, eq=False)
class _Passes:
    """Forward passes since the last backward pass, all of which but the last ended in a loss.

    Attributes:
        starts: the event at which each begins.
        loss_ends: the event of the last request of each one's loss.
        loss_rows: those requests.
        activations: what the passes with a loss asked for that is alive.
        pass_of: by activation, which pass asked for it.
        has_backward: whether a backward pass ran before them.
    """

    starts: NDArray[np.int64]
    loss_ends: NDArray[np.int64]
    loss_rows: list[int]
    activations: NDArray[np.int64]
    pass_of: NDArray[np.int64]
    has_backward: bool

    def bytes_of_each(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """What each pass with a loss keeps."""
        by_pass = np.bincount(self.pass_of, weights=sizes, minlength=len(self.loss_ends))
        return by_pass.astype(np.float64)


def _waiting_passes(scene: Scene) -> _Passes | None:
    """The passes since the last backward pass; None where they are too few, more than any backward
    pass used before, or one ended without a loss.
    """
    view, allocations, event = scene.view, scene.device.allocations, scene.ending_event
    if event is None or view.training == Training.ABSENT or not view.names.tensors:
        return None  # without names nobody knows what the program holds
    marked = np.flatnonzero(view.modules.trains)
    marked = marked[allocations.born[marked] < event]
    ends = view.phases.ends_before(event)
    all_starts = allocations.born[pass_starts(view.modules, marked)]
    waiting = waiting_passes(all_starts, ends)
    if waiting.count < _FEWEST_PASSES or waiting.count > (waiting.usual or waiting.count):
        return None
    starts = all_starts[-waiting.count :]
    loss_rows = _last_losses(scene, starts)
    if len(loss_rows) < max(_FEWEST_PASSES, waiting.count) - 1:
        return None
    rows = scene.advice_rows
    rows = rows[view.categories.category[rows] == Category.ACTIVATIONS]
    pass_of = np.searchsorted(starts, allocations.born[rows], side="right") - 1
    loss_ends = allocations.born[loss_rows]
    is_ended = (pass_of >= 0) & (
        allocations.born[rows] <= loss_ends[np.minimum(pass_of, len(loss_rows) - 1)]
    )
    return _Passes(
        starts=starts,
        loss_ends=loss_ends,
        loss_rows=loss_rows,
        activations=rows[is_ended],
        pass_of=pass_of[is_ended],
        has_backward=waiting.usual is not None,
    )


def _last_losses(scene: Scene, starts: NDArray[np.int64]) -> list[int]:
    """The last request of each pass's loss, up to the first pass without one."""
    allocations, event = scene.device.allocations, scene.advice_event
    rows = np.flatnonzero((allocations.born >= starts[0]) & (allocations.born < event))
    rows = rows[scene.trace.stacks.within(LOSS_FRAME, allocations.stack[rows])]
    pass_of = np.searchsorted(starts, allocations.born[rows], side="right") - 1
    last = dict(zip(pass_of.tolist(), rows.tolist(), strict=True))
    without = next((number for number in range(len(starts)) if number not in last), len(starts))
    return [last[number] for number in range(without)]


def _goes_on(scene: Scene, passes: _Passes) -> bool:
    """Whether a later pass, or a loss to come, may need what an earlier pass computed: the program
    holds some of it, or the inputs between the passes may be made of the outputs.
    """
    view, allocations = scene.view, scene.device.allocations
    pass_of = np.searchsorted(passes.starts, allocations.born, side="right") - 1
    is_ended = (pass_of >= 0) & (pass_of < len(passes.loss_ends))
    loss_end = passes.loss_ends[np.where(is_ended, pass_of, 0)]
    is_before_loss = is_ended & (allocations.born <= loss_end)
    is_held = is_before_loss & view.names.placed & (allocations.requested_bytes > _LARGEST_NUMBER)
    if is_held[scene.advice_rows].any():
        return True
    outputs = np.flatnonzero(is_before_loss & view.modules.marked)
    between = scene.advice_rows[(is_ended & ~is_before_loss)[scene.advice_rows]]
    is_moved = [scene.moves_data(view.place_of_block(row)) for row in between.tolist()]
    inputs = between[~np.array(is_moved, np.bool_)]  # what comes from the CPU is of no earlier pass
    output_bytes = dict(
        zip(pass_of[outputs].tolist(), allocations.requested_bytes[outputs].tolist(), strict=True)
    )
    input_bytes = np.bincount(
        pass_of[inputs],
        weights=allocations.requested_bytes[inputs],
        minlength=len(passes.loss_ends),
    )
    return any(
        output_bytes[number] <= input_bytes[number] <= _MOST_BESIDE_STATE * output_bytes[number]
        for number in output_bytes
    )


def _gradients_to_come(scene: Scene) -> int:
    """What the gradients will take that a backward pass after the first loss makes."""
    event = scene.advice_event
    rows = scene.advice_rows
    is_gradient = scene.view.categories.category[rows] == Category.GRADIENTS
    made_bytes = scene.bytes_of(rows[is_gradient])
    return max(trainable_bytes(scene.view, rows, event) - made_bytes, 0)
