"""How large the requests still to come would have been: each grows with the batch, the length, its
square, or not.

What grew alike in earlier steps grows alike in this one. Where all earlier steps were of one size,
requests of one
stack grow alike, and so do those of one size: the gradient of an activation is as large as the
    activation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.failure.step_template import Template
from vramlens.ground.allocator_sizes import block_size
from vramlens.trace import OutOfMemory

_SAME = 0.002
_CHANGED = 0.01
_MOST_STEPS = 12
_MOST_CLASSES = 4
_RESIDUAL = 0.05
_STEEPEST = 3.0


@dataclass(frozen=True, eq=False)
class Scaling:
    """The sizes of a template's rows in the failed step.

    Attributes:
        sizes: by row of the template, requested bytes.
        scale: of the batch or length against the template, by the bytes of what changed; 1.0 where
            nothing did but workspaces.
        learned: whether earlier steps of other sizes tell how each request grows.
        is_same: whether the failed step's requests are as large as the template's.
    """

    sizes: NDArray[np.int64]
    scale: float
    learned: bool
    is_same: bool = False


def scaling_of(view: Attribution, template: Template, request: OutOfMemory) -> Scaling:
    """The sizes that the failed step's requests would have had, all of them."""
    allocations = view.device.allocations
    theirs = allocations.requested_bytes[template.span.rows].astype(np.float64)
    served = np.flatnonzero(template.partner >= 0)
    ours = theirs.copy()
    ours[served] = allocations.requested_bytes[template.partner[served]]
    position = template.position
    if block_size(int(theirs[position])) != request.size_bytes:
        ours[position] = request.size_bytes
    grown = np.log(np.maximum(ours, 1) / np.maximum(theirs, 1))
    if not len(served):
        served = np.append(served, position)
    changed = np.abs(grown[served]) > _CHANGED
    if theirs[served][changed].sum() <= _SAME * theirs[served].sum():
        return Scaling(_whole(ours), 1.0, learned=False, is_same=True)
    telling = _outliving_their_call(view, template, served)
    changed = np.abs(grown[telling]) > _CHANGED
    scale = float(np.exp(_weighted_median(grown[telling][changed], theirs[telling][changed])))
    history = _history(view, template)
    learned = bool((np.abs(history) > _CHANGED).any())
    later = np.arange(position + 1, len(theirs))
    if learned:
        grown[later] = _by_history(history, grown, theirs, served, later)
    unknown = later if not learned else later[np.isnan(grown[later])]
    grown[unknown] = _by_likeness(view, template, grown, served, unknown, float(np.log(scale)))
    ours[later] = theirs[later] * np.exp(grown[later])
    return Scaling(_whole(ours), scale, learned)


def _outliving_their_call(
    view: Attribution, template: Template, served: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The served requests that say how large the batch is; all where none does.

    Workspaces do not: cuDNN takes as much as there is room for, in another algorithm. They are free
    again before a request of another stack.
    """
    allocations, rows = view.device.allocations, template.span.rows
    stacks = allocations.stack[rows]
    last_of_calls = np.append(np.flatnonzero(stacks[1:] != stacks[:-1]), len(rows) - 1)
    next_starts = np.append(allocations.born[rows[1:]], template.span.end)
    last_of_own = last_of_calls[np.searchsorted(last_of_calls, served)]
    telling = served[allocations.died[rows[served]] > next_starts[last_of_own]]
    return telling if len(telling) else served


def _whole(sizes: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.asarray(np.rint(np.minimum(sizes, 2.0**40)), np.int64)


def _weighted_median(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    if not len(values):
        return 0.0
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def _history(view: Attribution, template: Template) -> NDArray[np.float64]:
    """By row of the template and earlier span, the logarithm of how much larger the same request
    was there.
    """
    sizes = view.device.allocations.requested_bytes
    span = template.span
    columns = []
    numbers = [n for n in range(len(template.spans) - 1) if n != template.number]
    for number in numbers[-_MOST_STEPS:]:
        other = template.spans[number]
        _, places, theirs = np.intersect1d(
            span.keys, other.keys, assume_unique=True, return_indices=True
        )
        if len(places) < len(span.keys) / 2:
            continue
        column = np.zeros(len(span.rows))
        column[places] = np.log(
            np.maximum(sizes[other.rows[theirs]], 1) / np.maximum(sizes[span.rows[places]], 1)
        )
        columns.append(column)
    return np.stack(columns, axis=1) if columns else np.zeros((len(span.rows), 0))


def _by_history(
    history: NDArray[np.float64],
    grown: NDArray[np.float64],
    weights: NDArray[np.float64],
    seen: NDArray[np.int64],
    later: NDArray[np.int64],
) -> NDArray[np.float64]:
    """How much the later requests grew, from those seen that grew alike in earlier steps; NaN
    where none did.
    """
    patterns, pattern_of = np.unique(np.round(history, 2), axis=0, return_inverse=True)
    pattern_of = pattern_of.reshape(-1)
    fixed = np.abs(patterns).max(axis=1, initial=0) <= _CHANGED
    weight = np.bincount(pattern_of[seen], weights=weights[seen], minlength=len(patterns))
    growths = np.full(len(patterns), np.nan)
    for pattern in np.flatnonzero(weight > 0).tolist():
        rows = seen[pattern_of[seen] == pattern]
        growths[pattern] = _weighted_median(grown[rows], weights[rows])
    growths[fixed] = 0.0
    basis = [n for n in np.argsort(-weight).tolist() if weight[n] > 0 and not fixed[n]][
        :_MOST_CLASSES
    ]
    for pattern in np.unique(pattern_of[later]).tolist():
        if np.isnan(growths[pattern]) and basis:
            growths[pattern] = _combined(patterns, growths, basis, pattern)
    return np.asarray(growths[pattern_of[later]])


def _combined(
    patterns: NDArray[np.float64], known: NDArray[np.float64], basis: list[int], pattern: int
) -> float:
    """Growth as a product of powers of what is known: a length's square, say; NaN where none
    fits.
    """
    exponents = patterns[pattern]
    for count in range(1, len(basis) + 1):
        chosen = basis[:count]
        powers, *_ = np.linalg.lstsq(patterns[chosen].T, exponents, rcond=None)
        misfit = float(np.abs(patterns[chosen].T @ powers - exponents).max(initial=0))
        if misfit <= _RESIDUAL and np.abs(powers).max(initial=0) <= _STEEPEST:
            return float(powers @ known[chosen])
    return float("nan")


def _lasting_sizes(view: Attribution, template: Template) -> set[int]:
    """The sizes of what was there before the template's step and outlives the failed one."""
    allocations, first = view.device.allocations, template.span.rows[0]
    lasts = (allocations.born < first) & (allocations.died >= template.failed.end)
    return set(allocations.requested_bytes[lasts].tolist())


def _by_likeness(
    view: Attribution,
    template: Template,
    grown: NDArray[np.float64],
    seen: NDArray[np.int64],
    later: NDArray[np.int64],
    usual: float,
) -> NDArray[np.float64]:
    """How much the later requests grew, from one step alone: as those of their stack, or of
    their size.
    """
    allocations, rows = view.device.allocations, template.span.rows
    sizes, stacks = allocations.requested_bytes[rows], allocations.stack[rows]
    by_stack = {int(stacks[n]): float(grown[n]) for n in seen.tolist()}
    by_size = {int(sizes[n]): float(grown[n]) for n in seen.tolist()}
    fixed_sizes = _lasting_sizes(view, template)
    phase = view.phases.phase[rows]
    without_stack = view.phases.frame[rows] < 0
    growths = np.full(len(later), usual)
    for at, n in enumerate(later.tolist()):
        size, stack = int(sizes[n]), int(stacks[n])
        is_optimizer, is_backward = phase[n] == Phase.OPTIMIZER, phase[n] == Phase.BACKWARD
        if phase[n] in (Phase.BACKWARD, Phase.OPTIMIZER) and size in fixed_sizes:
            growths[at] = 0.0
        elif stack in by_stack and not (without_stack[n] or is_backward):
            growths[at] = by_stack[stack]
        else:
            growths[at] = by_size.get(size, 0.0 if is_optimizer else usual)
    return growths
