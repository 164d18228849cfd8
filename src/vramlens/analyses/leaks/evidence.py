"""Evidence beside the number of steps: what tells a leak from a buffer that has not filled yet.

A buffer of 64 results, or an epoch's list, is the same data as a leak until it is full or emptied.
These are not:

- **captured**: of the equal results that alike layers make in a step one is kept, not the last, and
the others are
  given back in that very step. Nobody asked for it to keep it; a hook or a closure took it from the
  middle of a pass.
- **outlived**: the loop's own variables went, or even the model, and this is still there.
- **held by no object**: the process named its tensors, and no object of the program leads to these: an
autograd graph
  keeps them, which no buffer does.
- **latest first**: it went together with the model, the latest first, as CPython empties a list
(Objects/listobject.c:
  list_dealloc counts down). A deque and a dict let go of the oldest first
  (Modules/_collectionsmodule.c: deque_clear; Objects/dictobject.c: dictkeys_decref): those two look
  alike.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.modules import OUTSIDE
from vramlens.analyses.attribution.phases import MODULE_CALL
from vramlens.analyses.attribution.training import Training
from vramlens.trace import NO_STACK, Action, TensorKind

OUTLIVED, LATEST_FIRST, OLDEST_FIRST, UNORDERED = (
    "outlived",
    "latest first",
    "oldest first",
    "unordered",
)
_IN_MODULE = re.compile(r"torch[/\\]nn[/\\]modules[/\\]module\.py:")
_COPIES_MODEL = re.compile(
    r"torch[/\\]nn[/\\](?:modules[/\\]module\.py:_apply|parameter\.py:__deepcopy__)$"
)
_NEARLY_ALL = 0.9
_MANY_PLACES = 6
"""More than a replay buffer has columns of."""
_LEAST_SEARCHED_BYTES, _MOST_SEARCHED = 64 * 1024, 500
"""Of which tensors the process looks for the holders (capture/names/tensor_names.py)."""
_FEWEST_BUILT = 3
_SCALAR_BYTES = 512
"""Single numbers are all alike: that others were given back says nothing."""
_END = 0.1
"""After the end begins, no more is asked for than so much of what a step usually asks for."""


def fate_of(view: Attribution, rows: NDArray[np.int64], moment: int) -> str | None:
    """What became of some allocations when their loop ended; None where the recording does not show
    its end.

    Args:
        rows: alive at the moment, in order of birth.
        moment: an event in or before the last step.
    """
    allocations, steps, never = view.device.allocations, view.steps, len(view.device.events)
    if len(steps) < 2 or not len(rows):
        return None
    stay = (allocations.free_requested[rows] >= never).mean() >= _NEARLY_ALL
    gone = _model_gone(view, rows, moment)
    if stay:
        return OUTLIVED if len(gone) or _variables_gone(view, rows) else None
    if not len(gone):
        return None
    given_up = allocations.free_requested[rows]
    births = np.flatnonzero(view.device.events.action == Action.ALLOC)
    usual = float(np.median(np.diff(np.searchsorted(births, steps.starts))))
    first = min(
        int(np.quantile(given_up, 1 - _NEARLY_ALL)),
        int(np.median(allocations.free_requested[gone])),
    )
    after = len(births) - int(np.searchsorted(births, first))
    if (given_up < never).mean() < _NEARLY_ALL or after > max(_END * usual, 1):
        return UNORDERED  # or the program went on after one of the two
    return _order_of_end(view, rows, given_up)


def _order_of_end(view: Attribution, rows: NDArray[np.int64], given_up: NDArray[np.int64]) -> str:
    """In which order of birth allocations were given back."""
    # Each layer may have a list of its own: the first block of every step is compared with the
    # first, and so on.
    born = view.step[rows]
    rank = np.arange(len(rows)) - np.searchsorted(born, born)
    order = np.lexsort((born, rank))
    pairs = np.diff(rank[order]) == 0
    if not pairs.any():
        return UNORDERED
    falling = float((np.diff(given_up[order])[pairs] < 0).mean())
    if falling >= _NEARLY_ALL:
        return LATEST_FIRST
    return OLDEST_FIRST if falling <= 1 - _NEARLY_ALL else UNORDERED


def loop_ended(view: Attribution, rows: NDArray[np.int64], moment: int) -> bool:
    """Whether the recording shows how the loop's function ended: its variables went, or the
    model did.
    """
    return len(_model_gone(view, rows, moment)) > 0 or _variables_gone(view, rows)


def _model_gone(view: Attribution, rows: NDArray[np.int64], moment: int) -> NDArray[np.int64]:
    """What was there before the second step (the model, optimizer state), where nearly all was
    given back.
    """
    allocations, never = view.device.allocations, len(view.device.events)
    built = (allocations.born < view.steps.starts[1]) & (allocations.free_requested > moment)
    built &= view.categories.category != Category.WORKSPACE
    built[rows] = False
    sizes = allocations.requested_bytes
    gone = built & (allocations.free_requested < never)
    enough = built.sum() >= _FEWEST_BUILT and sizes[gone].sum() >= _NEARLY_ALL * sizes[built].sum()
    return np.flatnonzero(gone if enough else np.zeros_like(gone))


def _variables_gone(view: Attribution, rows: NDArray[np.int64]) -> bool:
    """Whether what each step replaced was given back in the end without being replaced: its
    function had ended.

    ``loss = ...`` lets go of the step before's once the new one is there; the last one goes with
    the function.
    """
    allocations, steps, never = view.device.allocations, view.steps, len(view.device.events)
    last = len(steps) - 1
    given_up = steps.of(allocations.free_requested)
    carried = (given_up == view.step + 1) & (view.step >= 1) & (allocations.stack != NO_STACK)
    times = np.bincount(allocations.stack[carried], minlength=1)
    for stack in np.setdiff1d(
        np.flatnonzero(times >= max(2, _NEARLY_ALL * (last - 2))), allocations.stack[rows]
    ).tolist():
        alike_rows = np.flatnonzero((allocations.stack == stack) & (view.step >= 1))
        step = view.step[alike_rows]
        rank = np.arange(len(alike_rows)) - np.searchsorted(step, step)
        times_a_step = np.bincount(step, minlength=last + 1)[1:]
        if times_a_step[-1] != np.median(times_a_step):
            continue  # the last step is not over, or more than one
        for chain_rank in np.unique(rank[carried[alike_rows]]).tolist():
            chain = alike_rows[rank == chain_rank]  # one a step
            if len(chain) != last or int(view.step[chain[0]]) != 1:
                continue
            replaced = allocations.free_requested[chain[:-1]] > allocations.born[chain[1:]]
            replaced &= given_up[chain[:-1]] == view.step[chain[1:]]
            if (
                replaced.mean() >= _NEARLY_ALL
                and int(allocations.free_requested[chain[-1]]) < never
            ):
                return True
    return False


def captured(view: Attribution, stack: int, rows: NDArray[np.int64]) -> bool:
    """Whether, of the equal results that alike layers make in a step, one from the middle is
    kept alone.
    """
    if stack == NO_STACK:
        return False
    stacks, allocations, step = view.trace.stacks, view.device.allocations, view.step
    within = stacks.mark_frames(_IN_MODULE)

    def path(number: int) -> bytes:
        # A module with a hook is called through one function more.
        frames = stacks.frames[stacks.starts[number] : stacks.starts[number + 1]]
        return bytes(frames[~within[frames]].tobytes())

    near, own_path = (
        np.flatnonzero(stacks.user_frame == stacks.user_frame[stack]).tolist(),
        path(stack),
    )
    alike = [number for number in near if path(number) == own_path]
    kept_rows = rows[
        (allocations.stack[rows] == stack) & (allocations.requested_bytes[rows] > _SCALAR_BYTES)
    ]
    alike_rows = np.flatnonzero(np.isin(allocations.stack, alike) & (step >= 0))
    never = len(view.device.events)
    over = (view.steps.of(allocations.free_requested[alike_rows]) == step[alike_rows]) & (
        allocations.free_requested[alike_rows] < never
    )
    latest: dict[tuple[int, int], int] = {}
    for row in alike_rows[over].tolist():
        latest[int(step[row]), int(allocations.requested_bytes[row])] = row
    is_captured: dict[int, bool] = {}
    for row in kept_rows.tolist():
        number = int(step[row])
        is_captured[number] = (
            is_captured.get(number, False)
            or latest.get((number, int(allocations.requested_bytes[row])), -1) > row
        )
    hit = len(np.unique(step[rows]))
    return sum(is_captured.values()) >= _NEARLY_ALL * max(hit, 1)


def made_of_results(view: Attribution, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """One flag a block: whether it is a model's copy, or as large as results of modules that its
    step still had: one of them (scaled, say), or all of one size together (``torch.cat``).
    """
    flags = view.trace.stacks.within(_COPIES_MODEL, view.device.allocations.stack[rows])
    inside = np.flatnonzero(view.modules.marked & (view.modules.module != OUTSIDE))
    for place in np.flatnonzero(~flags).tolist():
        flags[place] = _is_as_large_as_results(view, int(rows[place]), inside)
    return flags


def _is_as_large_as_results(view: Attribution, row: int, inside: NDArray[np.int64]) -> bool:
    allocations, born = view.device.allocations, view.device.allocations.born
    earlier = inside[: int(np.searchsorted(born[inside], born[row]))]
    near = earlier[view.step[earlier] == view.step[row]]
    alive = near[allocations.free_requested[near] > born[row]]
    sizes, times = np.unique(allocations.requested_bytes[alive], return_counts=True)
    is_telling = sizes > _SCALAR_BYTES
    sizes, times = sizes[is_telling], times[is_telling]
    size_bytes = int(allocations.requested_bytes[row])
    return bool(((sizes == size_bytes) | (sizes * times == size_bytes)).any())


def held_by_no_object(view: Attribution, rows: NDArray[np.int64]) -> bool:
    """Whether the process looked for what keeps its tensors, and nothing of the program leads to these
    allocations: then a graph keeps them.
    """
    names, allocations = view.names, view.device.allocations
    if not names.tensors or view.training == Training.ABSENT:
        return False
    if not (allocations.free_requested[rows] >= len(view.device.events)).all():
        return False
    sizes = allocations.requested_bytes[rows]
    of_graph = names.in_graph[rows] & ~names.placed[rows]
    if sizes[of_graph].sum() >= _NEARLY_ALL * sizes.sum():
        return True
    tensor_rows = names.of_kind(TensorKind.TENSOR)
    tensor_rows = tensor_rows[allocations.requested_bytes[tensor_rows] >= _LEAST_SEARCHED_BYTES]
    # Where nothing is named after its holder, the search may have been too short.
    if not names.placed[tensor_rows].any() and not (
        _with_a_number(view, rows) or _in_parts(view, rows)
    ):
        return False
    smallest_searched_bytes = _LEAST_SEARCHED_BYTES
    if len(tensor_rows) >= _MOST_SEARCHED:
        smallest_searched_bytes = int(allocations.requested_bytes[tensor_rows].min())
    searched_bytes = int(sizes[sizes >= smallest_searched_bytes].sum())
    placed_bytes = int(sizes[names.placed[rows]].sum())
    total = max(1, int(sizes.sum()))
    return searched_bytes >= _NEARLY_ALL * total and placed_bytes <= (1 - _NEARLY_ALL) * total


def _with_a_number(view: Attribution, rows: NDArray[np.int64]) -> bool:
    """Whether each step left a single number with the rest, from the same line: a loss or a metric
    with what it was computed from.
    """
    allocations, step = view.device.allocations, view.step[rows]
    stack = allocations.stack[rows].astype(np.int64)
    is_number = allocations.requested_bytes[rows] <= _SCALAR_BYTES
    keys = step * len(view.trace.stacks) + stack
    is_with_number = np.isin(keys, keys[is_number]) & ~is_number & (stack != NO_STACK)
    steps_with_number = len(np.unique(step[is_with_number]))
    return steps_with_number >= _NEARLY_ALL * len(np.unique(step))


def _in_parts(view: Attribution, rows: NDArray[np.int64]) -> bool:
    """Whether each step left what many places of a computation made, as a graph keeps it: a program
    stores a few of its results.
    """
    stack, step = view.device.allocations.stack[rows], view.step[rows]
    steps = len(np.unique(step))
    of_steps = (
        len(np.unique(step[stack == number])) for number in np.unique(stack[stack != NO_STACK])
    )
    return sum(count >= _NEARLY_ALL * steps for count in of_steps) >= _MANY_PLACES


def kept_share(view: Attribution, rows: NDArray[np.int64], statements: NDArray[np.int64]) -> float:
    """How many of the blocks that a pass asked for stay, in the steps in which some do.

    Args:
        rows: those that stay.
        statements: the stacks of the statements that they come from, inside of modules.
    """
    of_pass = np.isin(view.device.allocations.stack, statements) & np.isin(
        view.step, np.unique(view.step[rows])
    )
    return len(rows) / max(int(of_pass.sum()), 1)


def calls_in_common(view: Attribution) -> int:
    """How many calls of modules all requests of the steps lie in, one inside of the other.

    Two or more, and what repeats are perhaps the layers of one pass: a step would have called the
    model itself again.
    """
    stacks = view.trace.stacks
    inside = (view.step >= 1) & (view.step < max(2, len(view.steps) - 1))
    stacks_in_steps = np.unique(view.device.allocations.stack[inside])
    stacks_in_steps = stacks_in_steps[stacks_in_steps != NO_STACK]
    call = stacks.mark_frames(MODULE_CALL)
    shared: list[tuple[int, int]] | None = None
    marks: list[bool] = []
    for stack in stacks_in_steps.tolist():
        frames = stacks.frames[stacks.starts[stack] : stacks.starts[stack + 1]][::-1]
        if not len(frames):
            continue
        path = list(
            zip(
                stacks.frame_file[frames].tolist(),
                stacks.frame_function[frames].tolist(),
                strict=True,
            )
        )
        if shared is None:
            shared, marks = path, call[frames].tolist()
        length = next(
            (n for n, (a, b) in enumerate(zip(shared, path, strict=False)) if a != b), None
        )
        shared = shared[: min(len(shared), len(path)) if length is None else length]
        if not any(marks[: len(shared)]):
            return 0
    # A call counts where what it calls is one function: a container's children differ.
    return sum(marks[: max(0, len(shared or ()) - 1)])
