"""Growth: memory that every step leaves behind, by the line that asked for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution import Attribution
from vramlens.analyses.categories import Category
from vramlens.analyses.finding import Place
from vramlens.analyses.phases import Phase
from vramlens.trace import NO_STACK
from vramlens.units import format_size

_FEWEST_STEPS = 4
_PROVEN_STEPS = 6
"""So many steps in a row that each left something behind, and none of it ever given back, prove a leak."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory that grows with every step.

    Attributes:
        verdict: proven or likely.
        kind: the contract's class (graph, container, ...); None where a recording cannot tell.
        place: the innermost user line common to all its allocations.
        bytes_per_step: requested bytes that a step leaves behind, the median.
        bytes: requested bytes that it held when judged: at the failure, else when the last step began.
        steps: how many steps left something behind.
        owner: what keeps it; None from a recording alone.
        fix: what to do.
    """

    verdict: str
    kind: str | None
    place: Place | None
    bytes_per_step: int
    bytes: int
    steps: int
    owner: None
    fix: str


def leaks_of(view: Attribution, event: int | None = None) -> tuple[Leak, ...]:
    """What each step leaves behind and no later step gives back, the fastest growing first.

    Args:
        event: judge the memory right after this event; by default when the last step begins, because what follows
            it may be the end of the program, where everything goes.
    """
    steps = view.steps
    if len(steps) < _FEWEST_STEPS:
        return ()
    last = len(steps) - 1 if event is None else int(steps.of(np.array([event]))[0])
    alive = view.device.allocations.alive_after(int(steps.starts[last]) if event is None else event)
    born = view.step[alive]
    alive = alive[(born >= 0) & (born < last)]
    keys = _statements(view, alive)
    leaks = [_leak(view, alive[keys == key], last) for key in np.unique(keys)]
    return tuple(sorted((leak for leak in leaks if leak), key=lambda leak: -leak.bytes_per_step))


def _leak(view: Attribution, rows: NDArray[np.int64], last: int) -> Leak | None:
    """The leak of one statement, or None when what it keeps does not grow to the end."""
    frame = view.phases.frame[rows]
    growing = [kind for kind in np.unique(frame) if _grows(view, rows[frame == kind], last)]
    rows = rows[np.isin(frame, growing)]
    if not len(rows):
        return None
    sizes = view.device.allocations.requested_bytes[rows]
    by_step = np.bincount(view.step[rows], weights=sizes, minlength=last).astype(np.int64)
    left = by_step[: last - 1]
    filled = left[left > 0]
    in_a_row = int(np.argmin(np.append(left[::-1] > 0, False)))
    per_step = int(np.median(filled))
    return Leak(
        verdict="proven" if in_a_row >= _PROVEN_STEPS else "likely",
        kind=None,
        place=_common_place(view, rows),
        bytes_per_step=per_step,
        bytes=int(sizes.sum()),
        steps=int((by_step > 0).sum()),
        owner=None,
        fix=_fix(view, rows, per_step),
    )


def _grows(view: Attribution, rows: NDArray[np.int64], last: int) -> bool:
    """Whether the later half of the steps each left something behind; the latest step may still be using its own."""
    left = np.bincount(view.step[rows], minlength=last)[: last - 1] > 0
    later = left[len(left) // 2 :]
    return len(later) >= 2 and bool(later.mean() >= 0.9) and bool(later[-1])


def _statements(view: Attribution, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for the statement of the training loop under which each row was asked for.

    All that one statement of the loop keeps is one leak: a kept loss keeps a whole graph, from many lines. The loop is
    the innermost function that all of the training step's stacks have in common.
    """
    stacks, allocations = view.trace.stacks, view.device.allocations
    known: dict[tuple[int, ...], int] = {}
    users: dict[int, NDArray[np.uint32]] = {}

    def user_frames(stack: int) -> NDArray[np.uint32]:
        """The user's frames of a stack, outermost first."""
        if stack not in users:
            frames = stacks.frames[stacks.starts[stack] : stacks.starts[stack + 1]]
            users[stack] = frames[stacks.user_frames[frames]][::-1]
        return users[stack]

    def functions(frames: NDArray[np.uint32]) -> list[tuple[int, int]]:
        return list(zip(stacks.frame_file[frames].tolist(), stacks.frame_function[frames].tolist(), strict=True))

    training = np.isin(view.phases.phase, (Phase.OPTIMIZER, Phase.BACKWARD)) & (allocations.stack != NO_STACK)
    looped = training if training.any() else (view.step >= 1) & (allocations.stack != NO_STACK)
    loop: list[tuple[int, int]] | None = None
    for stack in np.unique(allocations.stack[looped]).tolist():
        path = functions(user_frames(stack))
        if path:
            loop = path if loop is None else loop[: _common_length(loop, path)]
    depth_of = {}
    for stack in np.unique(allocations.stack[rows]).tolist():
        if stack == NO_STACK:
            continue
        frames = user_frames(stack)
        depth_of[stack] = tuple(frames[: max(1, _common_length(loop or [], functions(frames)))].tolist())
    numbers = []
    for row in rows.tolist():
        statement = depth_of.get(int(allocations.stack[row])) or (-1, int(view.phases.frame[row]))
        numbers.append(known.setdefault(statement, len(known)))
    return np.array(numbers, np.int64)


def _common_length(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> int:
    length = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        length += 1
    return length


def _common_place(view: Attribution, rows: NDArray[np.int64]) -> Place | None:
    """The innermost user line that all stacks of these rows have in common."""
    stacks = view.trace.stacks
    shared: list[int] | None = None
    for stack in np.unique(view.device.allocations.stack[rows]).tolist():
        if stack == NO_STACK:
            continue
        frames = stacks.frames[stacks.starts[stack] : stacks.starts[stack + 1]]
        path = frames[stacks.user_frames[frames]][::-1].tolist()
        if not path:
            continue
        if shared is None:
            shared = path
        else:
            length = next((i for i, (a, b) in enumerate(zip(shared, path, strict=False)) if a != b), None)
            shared = shared[: min(len(shared), len(path)) if length is None else length]
    if shared:
        return view.place(shared[-1])
    frame = view.phases.frame[rows]
    return view.place(int(frame[frame >= 0][0])) if (frame >= 0).any() else None


def _fix(view: Attribution, rows: NDArray[np.int64], per_step: int) -> str:
    sizes = view.device.allocations.requested_bytes[rows]
    graph = int(sizes[view.categories.category[rows] == Category.ACTIVATIONS].sum())
    saved = f"frees {format_size(per_step)} a step"
    if graph * 2 > int(sizes.sum()) and len(np.unique(view.device.allocations.stack[rows])) > 1:
        return f"keep x.detach() or x.item() instead of x there: the graph behind it goes ({saved})"
    return f"drop or move off the GPU what that line leaves behind after each step ({saved})"
