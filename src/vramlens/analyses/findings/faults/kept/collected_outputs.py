"""What training steps leave one after the other until all of it goes at once, as at an epoch's end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.attribution.steps import PATTERN
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.units import format_size

_FEWEST_STEPS = 4
_LEAST_SHARE = 0.3
"""Of what is in use at the peak."""
_COVERED = 0.9
"""Of the steps between the first and the last that left something: what single steps leave is chosen."""
_OF_WEIGHTS = 0.9
"""Of the bytes, in tensors as large as a parameter: copies of weights are no outputs."""
_LOOP = (Phase.FORWARD, Phase.EVALUATION)
_OF_THE_MODEL = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE)


def collected_outputs(scene: Scene) -> Iterator[Finding]:
    """What was made after the model ran in each of several training steps, is there at the peak, and then goes
    at once, while training goes on and makes it anew.
    """
    view, allocations = scene.view, scene.device.allocations
    is_known = view.steps.source not in (None, PATTERN) and bool(view.modules.marked.any())
    if scene.failure is not None or not is_known:
        return
    candidates = _candidates(scene)
    groups = [
        candidates[allocations.stack[candidates] == stack]
        for stack in _stacks_of(scene, candidates)
    ]
    collected = [rows for rows in groups if _are_collected(scene, rows)]
    if not collected:
        return
    largest = max(collected, key=scene.bytes_of)
    earlier = np.sort(
        np.concatenate([rows[view.step[rows] < view.step[rows].max()] for rows in collected])
    )
    size_bytes = scene.bytes_of(earlier)
    if size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    steps = len(np.unique(view.step[largest]))
    size = format_size(size_bytes)
    yield Finding(
        id="collected_outputs",
        verdict=Verdict.LIKELY,
        title=f"{scene.part_of_heap(size_bytes)} are outputs of earlier steps: {steps} training"
        " steps left as much each, until all of it went at once",
        bytes=size_bytes,
        place=view.place_of_block(allocations.largest_of(largest)),
        evidence=(
            f"it was freed in step {_step_of_end(scene, largest):,}, and later steps made it"
            " again: a list that is emptied now and then, as at the end of an epoch",
        ),
        fix="keep only what is needed of each step's output (out.argmax(-1), a sum), or move it to"
        f" the CPU there: outputs.append(out.detach().cpu()) (up to {size} less, and as much where"
        " they are joined)",
        extent=scene.extent(earlier),
    )


def _candidates(scene: Scene) -> NDArray[np.int64]:
    """What is there at the peak and was made in a step, after the model had begun to run in it."""
    view, allocations, rows = scene.view, scene.device.allocations, scene.advice_rows
    rows = rows[(allocations.born[rows] >= 0) & (view.step[rows] >= 0)]
    is_of_loop = np.isin(view.phases.phase[rows], _LOOP) & (allocations.stack[rows] != NO_STACK)
    rows = rows[is_of_loop & ~np.isin(view.categories.category[rows], _OF_THE_MODEL)]
    model_runs = np.full(len(view.steps), len(scene.device.events), np.int64)
    marked = np.flatnonzero(view.modules.marked & (view.step >= 0))
    np.minimum.at(model_runs, view.step[marked], allocations.born[marked])
    return np.asarray(rows[allocations.born[rows] >= model_runs[view.step[rows]]])


def _stacks_of(scene: Scene, rows: NDArray[np.int64]) -> list[int]:
    """The stacks that some allocations came from in several steps."""
    stacks = scene.device.allocations.stack[rows]
    pairs = np.unique(np.stack([stacks, scene.view.step[rows]]), axis=1)
    numbers, steps = np.unique(pairs[0], return_counts=True)
    return [int(number) for number in numbers[steps >= _FEWEST_STEPS]]


def _are_collected(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether nearly every step left some of these by one line, until they went together."""
    view = scene.view
    steps = np.unique(view.step[rows])
    peak_step = int(view.steps.of(np.array([scene.advice_event]))[0])
    is_in_a_row = len(steps) >= _COVERED * (steps[-1] - steps[0] + 1)
    return (
        is_in_a_row
        and int(steps[-1]) >= peak_step - 1
        and _were_trained(scene, rows)
        and _go_at_once(scene, rows[view.step[rows] < steps[-1]])
        and not _are_weights(scene, rows)
    )


def _were_trained(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether a backward pass began between what each step left and what the next did."""
    view, born = scene.view, scene.device.allocations.born
    _, first = np.unique(view.step[rows], return_index=True)
    passes = np.searchsorted(view.phases.span_start, born[rows[first]])
    return bool((np.diff(passes) > 0).all())


def _go_at_once(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether these are freed while nothing is asked for, with all that their line made since the first of
    them but the newest, and it makes more after that: what is used later on stays beside new ones.
    """
    allocations = scene.device.allocations
    born, freed = allocations.born, allocations.free_requested
    begins, ends = int(freed[rows].min()), int(freed[rows].max())
    is_of_line = allocations.stack == allocations.stack[rows[0]]
    since = np.flatnonzero(is_of_line & (born >= born[rows[0]]) & (born < begins))
    go_together = (freed[since[:-1]] <= ends).all()
    is_quiet = not ((born > begins) & (born < ends)).any()
    return bool(go_together and is_quiet and (is_of_line & (born > ends)).any())


def _are_weights(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether they are as large as parameters, as snapshots of a model are."""
    view, sizes = scene.view, scene.device.allocations.requested_bytes
    parameters = np.unique(sizes[view.categories.category == Category.PARAMETERS])
    row_sizes = sizes[rows]
    as_parameters = row_sizes[np.isin(row_sizes, parameters)]
    return bool(as_parameters.sum() >= _OF_WEIGHTS * row_sizes.sum())


def _step_of_end(scene: Scene, rows: NDArray[np.int64]) -> int:
    """The step in which they were freed."""
    ends = scene.device.allocations.free_requested[rows[:1]]
    return int(scene.view.steps.of(ends)[0])
