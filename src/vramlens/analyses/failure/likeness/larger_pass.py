"""How many times as large a failed pass is as the earlier passes that it is like.

Two calls of one model have the innermost lines of their stacks in common, up to the first that is not
PyTorch's. The third request of such a line in one pass repeats the third of that line in another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.training import LEAST_KEPT_SHARE, pass_starts
from vramlens.analyses.leaks.certainty import PATTERN
from vramlens.trace import OutOfMemory, Stacks

ALIKE = 0.05
"""Of a size: inputs are padded, and blocks rounded."""
_LEAST_TIMES = 2.0
"""A spike, as the cause of a failure has it. Lengths that vary by design gave 1.33 to 1.42 (gpt_varlen,
curriculum_len and multiscale_seg of tests/data/failures), the two faults 6.6 and 40.
"""
_LEAST_PAIRED = 0.7
"""Of the pass's bytes: with fewer in common, the earlier one is another kind of pass."""
_LEAST_ALIKE = 0.75
"""Of what is in common, that is as many times as large: inputs make all activations larger, and only
what is of the weights is not. The two faults had 0.83 and 0.89.
"""
_FEW_PASSES = 3
"""As many before the one that failed, each larger than the last, are raised on purpose."""
_SAME_SIZE = 0.01


@dataclass(frozen=True, slots=True)
class PassGrowth:
    """How much larger the failed pass is than the largest earlier one.

    Attributes:
        times: as large.
        requests: how many of its requests are.
        is_of_same_call: whether the same call of the program made both; else the earlier one was
            trained with, in a step that ended.
        had_one_size: whether all earlier passes of that call, two at least, were of one size.
        start, earlier_start, earlier_end: events: where the failed one begins, and the earlier one's.
    """

    times: float
    requests: int
    is_of_same_call: bool
    had_one_size: bool
    start: int
    earlier_start: int
    earlier_end: int


@dataclass(frozen=True, eq=False)
class _Requests:
    """What each pass asked for, in order of birth, the request that failed last.

    Attributes:
        part: the number of the pass.
        key: which request of its pass it is: its innermost lines, and how many of them came before.
        size_bytes, stack: of each.
        is_used: whether a backward pass gave it back.
    """

    part: NDArray[np.int64]
    key: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    stack: NDArray[np.int64]
    is_used: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Bounds:
    """Where passes begin; each ends with the failure.

    Attributes:
        passes: the events between which they lie.
        graphs: those between which lies all that one backward pass uses.
        last_step: the event at which the failed step began; -1 where it is the first.
    """

    passes: NDArray[np.int64]
    graphs: NDArray[np.int64]
    last_step: int


@dataclass(frozen=True, eq=False)
class _Passes:
    """The earlier passes that the failed one is like, in their order.

    Attributes:
        part: their numbers.
        times: how many times as large the failed one is.
        is_of_same_call: whether the same call of the program made them.
        is_trained: whether backward passes used what they kept.
    """

    part: NDArray[np.int64]
    times: NDArray[np.float64]
    is_of_same_call: NDArray[np.bool_]
    is_trained: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Comparison:
    """The requests of earlier passes that the failed one repeats.

    Attributes:
        passes: the earlier passes that it is like.
        part: by request, the number of its pass.
        size_bytes: of the same request of the failed pass.
        ratio: how many times as large that is.
    """

    passes: _Passes
    part: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    ratio: NDArray[np.float64]


def pass_growths(view: Attribution, request: OutOfMemory) -> Iterator[PassGrowth]:
    """Yields how much larger the pass is that failed; nothing where an earlier one was about as large,
    none is like it, or its size is meant.

    A derivative inside of a step ends no pass: where passes tell nothing, whole steps may.
    """
    if request.event <= 0:  # nothing is recorded before it
        return
    paths = _inner_paths(view.trace.stacks)
    steps = view.steps.starts if view.steps.source != PATTERN else view.steps.starts[:0]
    whole_steps = _bounds(request, steps)
    graphs = _bounds(request, steps, view.phases.span_end)
    passes = _bounds(request, graphs, *_starts_of_models(view))
    last_step = int(whole_steps[-2]) or -1
    for bounds in (
        _Bounds(passes, graphs, last_step),
        _Bounds(whole_steps, whole_steps, last_step),
    ):
        comparison = _compared(_requests(view, request, bounds.passes, paths), bounds)
        if comparison is None:
            continue
        if _is_climbing(comparison.passes):
            return
        growth = _growth(comparison, bounds)
        if growth is not None:
            yield growth


# Passes


def _bounds(request: OutOfMemory, *starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The recording's first event and those of some before the failed request, and that itself."""
    bounds = np.unique(np.concatenate([np.zeros(1, np.int64), *starts]))
    return np.append(bounds[bounds < request.event], request.event)


def _starts_of_models(view: Attribution) -> Iterator[NDArray[np.int64]]:
    """Yields the events at which the passes of each model begin."""
    modules, born = view.modules, view.device.allocations.born
    marked = np.flatnonzero(modules.marked & (view.phases.span < 0) & (born >= 0))
    for root in np.unique(modules.root[marked]).tolist():
        yield born[pass_starts(modules, marked[modules.root[marked] == root])]


def _requests(
    view: Attribution,
    request: OutOfMemory,
    bounds: NDArray[np.int64],
    paths: NDArray[np.int64],
) -> _Requests:
    """What was asked for between some events, as far as stacks tell where.

    Args:
        paths: by stack, a number for its innermost frames; -1 where they tell nothing.
    """
    allocations = view.device.allocations
    stack = np.minimum(allocations.stack.astype(np.int64), len(paths) - 1)
    rows = np.flatnonzero((allocations.born >= 0) & (allocations.born < request.event))
    rows = rows[paths[stack[rows]] >= 0]
    is_used = _is_used(view, rows)
    part = np.searchsorted(bounds, allocations.born[rows], side="right") - 1
    sizes, stacks = allocations.requested_bytes[rows], stack[rows]
    failed_stack = min(request.stack, len(paths) - 1)
    if paths[failed_stack] >= 0:
        part, sizes = np.append(part, len(bounds) - 2), np.append(sizes, request.size_bytes)
        stacks, is_used = np.append(stacks, failed_stack), np.append(is_used, False)
    return _Requests(part, _keys(part, paths[stacks]), sizes, stacks, is_used)


def _is_used(view: Attribution, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each of some allocations was given back while a backward pass ran."""
    freed = view.device.allocations.free_requested[rows]
    return np.asarray(view.phases.span_at(freed) >= 0)


def _inner_paths(stacks: Stacks) -> NDArray[np.int64]:
    """By stack, a number for its frames up to the innermost that is not PyTorch's; -1 without such a
    frame, and at the end, for no stack.
    """
    numbers: dict[bytes, int] = {}
    paths = np.full(len(stacks) + 1, -1, np.int64)
    for stack in np.flatnonzero(stacks.code_frame >= 0).tolist():
        frames = stacks.frames[stacks.starts[stack] : stacks.starts[stack + 1]]
        length = int(np.argmax(stacks.code_frames[frames])) + 1
        paths[stack] = numbers.setdefault(frames[:length].tobytes(), len(numbers))
    return paths


def _keys(part: NDArray[np.int64], path: NDArray[np.int64]) -> NDArray[np.int64]:
    """By request, its path and how many of that path came before it in its pass."""
    order = np.lexsort((path, part))  # stable: those of one path stay in their order
    pairs = np.stack([part[order], path[order]])
    is_first = np.append(True, (pairs[:, 1:] != pairs[:, :-1]).any(axis=0))[: len(part)]
    firsts = np.flatnonzero(is_first)
    rank = np.empty(len(part), np.int64)
    rank[order] = np.arange(len(part)) - firsts[np.cumsum(is_first) - 1]
    return np.asarray((path << 32) + rank)


# Likeness


def _compared(requests: _Requests, bounds: _Bounds) -> _Comparison | None:
    """The last of some passes beside those before it; None where they have nothing in common."""
    of_last = requests.part == len(bounds.passes) - 2
    place, is_paired = _places(requests.key[of_last], requests.key)
    is_paired &= ~of_last
    if not is_paired.any():
        return None
    part, sizes = requests.part[is_paired], requests.size_bytes[of_last][place[is_paired]]
    ratio = sizes / np.maximum(requests.size_bytes[is_paired], 1)
    passes = _passes_like_it(
        part,
        sizes,
        ratio,
        is_of_same_call=requests.stack[is_paired] == requests.stack[of_last][place[is_paired]],
        is_used=requests.is_used[is_paired],
        least_bytes=_LEAST_PAIRED * float(requests.size_bytes[of_last].sum()),
    )
    return _Comparison(passes, part, sizes, ratio)


def _growth(comparison: _Comparison, bounds: _Bounds) -> PassGrowth | None:
    """How much larger the last of some passes is than those before it; None where it is not."""
    passes, ratio, sizes = comparison.passes, comparison.ratio, comparison.size_bytes
    is_told = passes.is_trained & (bounds.passes[passes.part] < bounds.last_step)
    is_told |= passes.is_of_same_call
    if not is_told.any() or passes.times.min() < _LEAST_TIMES:
        return None
    largest = int(np.flatnonzero(is_told)[np.argmin(passes.times[is_told])])
    times = float(passes.times[largest])
    is_in_it = comparison.part == passes.part[largest]
    is_alike = is_in_it & (np.abs(np.log(ratio / times)) <= ALIKE)
    if sizes[is_alike].sum() < _LEAST_ALIKE * sizes[is_in_it].sum():
        return None
    start = bounds.passes[passes.part[largest]]
    graph = int(np.searchsorted(bounds.graphs, start, side="right"))
    return PassGrowth(
        times=times,
        requests=int(is_alike.sum()),
        is_of_same_call=bool(passes.is_of_same_call[largest]),
        had_one_size=_had_one_size(passes),
        start=int(bounds.graphs[-2]),
        earlier_start=int(bounds.graphs[graph - 1]),
        earlier_end=int(bounds.graphs[graph]),
    )


def _places(
    among: NDArray[np.int64], keys: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where each key stands among some, and whether it does."""
    if not len(among):
        return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
    order = np.argsort(among)
    near = order[np.minimum(np.searchsorted(among[order], keys), len(among) - 1)]
    return near, among[near] == keys


def _passes_like_it(
    part: NDArray[np.int64],
    sizes: NDArray[np.int64],
    ratio: NDArray[np.float64],
    *,
    is_of_same_call: NDArray[np.bool_],
    is_used: NDArray[np.bool_],
    least_bytes: float,
) -> _Passes:
    """The earlier passes with enough in common. How many times as large the failed one is, is the
    median over its bytes.
    """
    order = np.lexsort((ratio, part))
    parts, firsts = np.unique(part[order], return_index=True)
    running = np.append(0, np.cumsum(sizes[order]))
    before, total = running[firsts], np.diff(running[np.append(firsts, len(order))])
    middle = np.searchsorted(running[1:], before + total / 2)
    same = np.add.reduceat(np.where(is_of_same_call[order], sizes[order], 0), firsts)
    used = np.add.reduceat(is_used[order].astype(np.int64), firsts)
    count = np.diff(np.append(firsts, len(order)))
    is_like = total >= least_bytes
    return _Passes(
        part=parts[is_like],
        times=ratio[order][middle][is_like],
        is_of_same_call=(2 * same > total)[is_like],
        is_trained=(used >= LEAST_KEPT_SHARE * count)[is_like],
    )


def _is_climbing(passes: _Passes) -> bool:
    """Whether the passes of the call grew, none falling back: a curriculum, which is meant."""
    times = passes.times[passes.is_of_same_call]
    if len(times) < _FEW_PASSES:
        return False
    growth = -np.diff(np.log(times))
    return bool((growth >= -_SAME_SIZE).all() and growth.sum() > ALIKE)


def _had_one_size(passes: _Passes) -> bool:
    """Whether the passes of the call, two at least, were of one size."""
    times = passes.times[passes.is_of_same_call]
    return len(times) > 1 and bool(np.ptp(np.log(times)) <= _SAME_SIZE)
