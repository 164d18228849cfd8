"""A pass that runs out of memory because its inputs are several times as large as any before it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.phases import MODULE_CALL
from vramlens.analyses.attribution.remedies_in_use import has_batch_of_one
from vramlens.analyses.failure.likeness.larger_pass import ALIKE, PassGrowth, pass_growths
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.findings.faults.uneven_rows import uneven_batches
from vramlens.analyses.scene import Scene, after_failure
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK, RowLengths, TensorKind
from vramlens.units import format_size

_FEWEST_REQUESTS = 8
"""Fewer are not a pass through a model: they may be large by chance."""
_SELDOM_MEANT = 20
"""Times as large as any pass before it."""
_FARTHEST_SIZE = 1000.0
"""Above the logarithm of any size."""


@after_failure
def larger_inputs(scene: Scene) -> Iterator[Finding]:
    """What is in use only because the pass that failed works on more than any pass before it, where
    without that the request would have been served. Passes of the earlier size ran to their end, so
    what was still to come of this one would be as much smaller.
    """
    request, verdict = scene.ending_request, scene.verdict
    least_bytes = (verdict and verdict.short_by_bytes) or request.size_bytes
    for growth in pass_growths(scene.view, request):
        rows = _grown_rows(scene, growth)
        sizes = scene.device.allocations.requested_bytes[rows]
        size_bytes = int(sizes.sum() * (1 - 1 / growth.times))
        if size_bytes >= least_bytes:
            yield _finding(scene, growth, rows, size_bytes)
            return


def _finding(scene: Scene, growth: PassGrowth, rows: NDArray[np.int64], size_bytes: int) -> Finding:
    batch = next(uneven_batches(scene), None)
    is_clear = growth.requests >= _FEWEST_REQUESTS and not growth.had_one_size
    step = scene.view.steps.of(np.array([growth.earlier_start]))[0]
    in_step = f" (step {step})" if scene.view.has_run_steps else ""
    return Finding(
        id="larger_inputs",
        verdict=Verdict.LIKELY if is_clear or batch is not None else Verdict.POSSIBLE,
        title=f"{scene.part_of_heap(size_bytes)} are in use only because the tensors of"
        f" this pass are {growth.times:.2f}x those of the largest pass before it",
        bytes=size_bytes,
        place=_place(scene, growth, rows),
        evidence=(
            f"{growth.requests} of its requests are {growth.times:.2f}x the same requests of that"
            f" pass{in_step}",
            *([] if batch is None else [_unevenness(batch)]),
        ),
        fix=_fix(scene.view, growth, size_bytes) + _doubt(growth),
        extent=scene.extent(rows),
    )


def _unevenness(batch: RowLengths) -> str:
    return (
        f"the rows of the batch are uneven: a tensor has a number for each of its {batch.rows:,}"
        f" rows, as lengths are, the largest {batch.longest:,}, {batch.total // batch.rows:,} on"
        " average"
    )


def _doubt(growth: PassGrowth) -> str:
    """What else to look at, where a pass is larger than inputs usually get."""
    if growth.times < _SELDOM_MEANT:
        return ""
    return ". If so many are not meant, look for what makes them: units, a cutoff, a mask"


def _fix(view: Attribution, growth: PassGrowth, size_bytes: int) -> str:
    saved = f"(up to {format_size(size_bytes)} less at the earlier size)"
    if not growth.is_of_same_call:
        return (
            f"compute this pass in {math.ceil(growth.times - ALIKE)} or more pieces, each as large"
            " as the earlier passes, and keep only the results: detached, or with a backward() for"
            f" each piece where gradients are needed {saved}"
        )
    if has_batch_of_one(view):
        return f"cut or split what is too long {saved}"
    fix = (
        "sort the samples by length, limit a batch by its padded size (samples x the longest) and"
        f" shuffle the batches, or cut samples that are too long {saved}"
    )
    if not growth.had_one_size:
        return fix
    return (
        f"if batches are padded to their longest sample, {fix}; if larger inputs are intended, use"
        f" a batch of 1/{math.ceil(growth.times - ALIKE)} of the samples for them"
    )


def _grown_rows(scene: Scene, growth: PassGrowth) -> NDArray[np.int64]:
    """What is in use that the failed pass asked for, and that the earlier one asked for at the same
    line in the earlier size. None where evaluation keeps some of it for nothing: without a graph it
    may fit.
    """
    view, allocations = scene.view, scene.device.allocations
    lasting = (TensorKind.PARAMETER, TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE)
    rows = scene.advice_rows[allocations.born[scene.advice_rows] >= growth.start]
    rows = np.setdiff1d(rows, view.names.of_kind(*lasting))
    if scene.evaluation is not None and np.isin(rows, scene.evaluation.rows).any():
        return rows[:0]
    earlier = _earlier_rows(view, growth)
    line, size = view.phases.frame, np.log(np.maximum(allocations.requested_bytes, 1))
    usual = np.sort(line[earlier] * _FARTHEST_SIZE + size[earlier])
    wanted = line[rows] * _FARTHEST_SIZE + size[rows] - math.log(growth.times)
    lowest = np.searchsorted(usual, wanted - ALIKE)
    highest = np.searchsorted(usual, wanted + ALIKE, side="right")
    return np.asarray(rows[(highest > lowest) & (line[rows] >= 0)])


def _earlier_rows(view: Attribution, growth: PassGrowth) -> NDArray[np.int64]:
    """All that was asked for while the earlier pass ran."""
    born = view.device.allocations.born
    edges = np.searchsorted(born, [growth.earlier_start, growth.earlier_end])
    return np.arange(edges[0], edges[1])


def _place(scene: Scene, growth: PassGrowth, rows: NDArray[np.int64]) -> Place | None:
    """The line that called the pass: the one that calls the model, or the innermost that the earlier
    pass does not have; that of the largest tensor where there is none.
    """
    view, allocations = scene.view, scene.device.allocations
    stacks = view.trace.stacks
    with_stack = rows[allocations.stack[rows] != NO_STACK]
    if not len(with_stack):
        return view.place_of_block(int(rows[0]))
    largest = allocations.largest_of(with_stack)
    frames = _frames(view, np.array([largest]))
    if growth.is_of_same_call:
        calls = np.flatnonzero(stacks.mark_frames(MODULE_CALL)[frames])
        outside = frames[int(calls[-1]) + 1 :] if len(calls) else frames[:0]
    else:
        outside = frames[~np.isin(frames, _frames(view, _earlier_rows(view, growth)))]
    outside = outside[stacks.user_frames[outside]]
    return view.place(int(outside[0])) if len(outside) else view.place_of_block(largest)


def _frames(view: Attribution, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The frames of some allocations' stacks, one stack after the other."""
    stacks = view.trace.stacks
    used = np.unique(view.device.allocations.stack[rows])
    runs = [
        stacks.frames[stacks.starts[stack] : stacks.starts[stack + 1]]
        for stack in used[used != NO_STACK].tolist()
    ]
    return np.concatenate([np.zeros(0, np.int64), *runs])
