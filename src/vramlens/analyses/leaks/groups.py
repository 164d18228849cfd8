"""Groups: the cohorts that are one leak. A kept loss keeps a whole graph, which many lines of
the model asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.phases import MODULE_CALL, Phase
from vramlens.analyses.finding import Place
from vramlens.analyses.leaks.cohorts import Cohort
from vramlens.trace import NO_STACK

_ALIKE = 0.9
_GRAPH_STACKS = 3
"""So many stacks of one forward pass that each leave something behind in the same steps are a
graph that is kept.
"""

_NEXT_TO = 4
"""Events between two blocks that one object lets go of: a block's request and completion, and those of a
number beside it.
"""


@dataclass(eq=False)
class CohortGroup:
    """Cohorts that are one leak.

    Attributes:
        statement: the frames from the program's beginning down to the statement of its loop.
        cohorts: the largest first.
        hit: by step, whether the largest left something behind.
    """

    statement: tuple[int, ...]
    cohorts: list[Cohort] = field(default_factory=list)

    @property
    def hit(self) -> NDArray[np.bool_]:
        return self.cohorts[0].hit

    @property
    def graph(self) -> bool:
        """Whether what it keeps are results of many modules in one pass, as a graph does, rather
        than one result.
        """
        return (
            len({cohort.stack for cohort in self.cohorts if cohort.forward and cohort.called})
            >= _GRAPH_STACKS
        )

    @property
    def rows(self) -> NDArray[np.int64]:
        """All allocations, in order of birth."""
        return np.sort(np.concatenate([cohort.rows for cohort in self.cohorts]))


class StepLoop:
    """The training loop: the innermost function that all stacks of its steps have in common.

    Attributes:
        of_library: whether that function is not the user's: a trainer calls the user's code, and
            all of it stands under one line of theirs.
    """

    def __init__(self, view: Attribution) -> None:
        self._stacks = view.trace.stacks
        self._users: dict[int, NDArray[np.uint32]] = {}
        self._by_statement: dict[tuple[int, ...], list[int]] | None = None
        stack = view.device.allocations.stack
        training = np.isin(view.phases.phase, (Phase.OPTIMIZER, Phase.BACKWARD)) & (
            stack != NO_STACK
        )
        # Before the loop lies what builds the model; the last step goes on to the end of the
        # program.
        within = (view.step >= 1) & (view.step < max(2, len(view.steps) - 1)) & (stack != NO_STACK)
        looped = training if training.any() else within
        self._path: list[tuple[int, int]] | None = None
        for stack_in_loop in np.unique(stack[looped]).tolist():
            path = self._functions(self.user_frames(stack_in_loop))
            if path:
                self._path = (
                    path if self._path is None else self._path[: common_length(self._path, path)]
                )
        self.of_library = self._runs_in_library(np.unique(stack[within]))

    def _runs_in_library(self, looped: NDArray[np.uint32]) -> bool:
        stacks = self._stacks
        common: NDArray[np.uint32] | None = None
        for stack_in_loop in looped.tolist():
            frames = stacks.frames[stacks.starts[stack_in_loop] : stacks.starts[stack_in_loop + 1]][
                ::-1
            ]
            if not stacks.user_frames[frames].any():
                continue
            common = (
                frames
                if common is None
                else common[: common_length(self._functions(common), self._functions(frames))]
            )
        return common is not None and len(common) > 0 and not bool(stacks.user_frames[common[-1]])

    @property
    def depth(self) -> int:
        """How many user frames lead to the loop, its own function included."""
        return len(self._path or ())

    def user_frames(self, stack: int) -> NDArray[np.uint32]:
        """The user's frames of a stack, outermost first."""
        if stack not in self._users:
            frames = self._stacks.frames[
                self._stacks.starts[stack] : self._stacks.starts[stack + 1]
            ]
            self._users[stack] = frames[self._stacks.user_frames[frames]][::-1]
        return self._users[stack]

    def _functions(self, frames: NDArray[np.uint32]) -> list[tuple[int, int]]:
        stacks = self._stacks
        return list(
            zip(
                stacks.frame_file[frames].tolist(),
                stacks.frame_function[frames].tolist(),
                strict=True,
            )
        )

    def statement(self, cohort: Cohort) -> tuple[int, ...]:
        """The frames down to the loop's statement; for what has no stack, its line."""
        return self._statement_of(cohort.stack) or (-1, cohort.frame)

    def _statement_of(self, stack: int) -> tuple[int, ...]:
        if stack == NO_STACK:
            return ()
        frames = self.user_frames(stack)
        return tuple(
            frames[: max(1, common_length(self._path or [], self._functions(frames)))].tolist()
        )

    def stacks_beside(self, cohorts: Sequence[Cohort]) -> list[int]:
        """The stacks of modules' calls that come from the same statements as those of some
        cohorts.
        """
        if self._by_statement is None:
            self._by_statement = {}
            for stack in np.flatnonzero(
                self._stacks.any_frame(self._stacks.mark_frames(MODULE_CALL))
            ).tolist():
                self._by_statement.setdefault(self._statement_of(stack), []).append(stack)
        statements = {self.statement(cohort) for cohort in cohorts}
        return [
            stack for statement in statements for stack in self._by_statement.get(statement, ())
        ]


def common_length(a: Sequence[object], b: Sequence[object]) -> int:
    """How many elements two sequences begin with alike."""
    length = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        length += 1
    return length


def grouped(view: Attribution, loop: StepLoop, cohorts: Sequence[Cohort]) -> list[CohortGroup]:
    """One group a leak: what one statement of the loop keeps in the same steps; all parts of one
    graph; and what went together.
    """
    groups: dict[tuple[int, ...], list[CohortGroup]] = {}
    for cohort in cohorts:
        statement = loop.statement(cohort)
        groups_of_statement = groups.setdefault(statement, [])
        own_group = next(
            (candidate for candidate in groups_of_statement if _joins(candidate, cohort)), None
        )
        if own_group is None:
            own_group = CohortGroup(statement)
            groups_of_statement.append(own_group)
        own_group.cohorts.append(cohort)
    all_groups = [group for groups_of_statement in groups.values() for group in groups_of_statement]
    leaks = _joined([part for group in all_groups for part in _parts(loop, group)])
    return leaks if loop.of_library else _joined_by_end(view, leaks)


def _parts(loop: StepLoop, group: CohortGroup) -> list[CohortGroup]:
    """A group by the user's lines, where nothing says that those belong together: no graph, no
    statement of a loop.
    """
    if group.graph or not (loop.of_library or not all(member.forward for member in group.cohorts)):
        return [group]
    lines: dict[int, CohortGroup] = {}
    for cohort in group.cohorts:
        frames = loop.user_frames(cohort.stack).tolist() if cohort.stack != NO_STACK else []
        line = frames[-1] if frames else -2 - cohort.frame
        lines.setdefault(line, CohortGroup(group.statement)).cohorts.append(cohort)
    return list(lines.values())


def _joins(group: CohortGroup, cohort: Cohort) -> bool:
    """Whether a cohort comes in steps in which the group's largest comes too, and as often, or
    as part of its pass.
    """
    both = int((group.hit & cohort.hit).sum())
    if both < _ALIKE * int(cohort.hit.sum()):
        return False
    return both >= _ALIKE * int(group.hit.sum()) or (cohort.forward and group.cohorts[0].forward)


def _joined(groups: list[CohortGroup]) -> list[CohortGroup]:
    """Groups of several statements that are one graph: kept in the same steps, one of them a
    whole pass.
    """
    leaks: list[CohortGroup] = []
    graphs: list[CohortGroup] = []
    for group in sorted(groups, key=lambda part: (not part.graph, -len(part.cohorts))):
        for other in graphs:
            hits = group.hit, other.hit
            alike = int((hits[0] & hits[1]).sum()) >= _ALIKE * int((hits[0] | hits[1]).sum())
            near = other.statement[:-1] == group.statement[:-1] or group.statement[0] < 0
            if alike and near and (group.cohorts[0].forward or group.statement[0] < 0):
                other.cohorts += group.cohorts
                break
        else:
            leaks.append(group)
            if group.graph:
                graphs.append(group)
    return leaks


def _joined_by_end(view: Attribution, groups: list[CohortGroup]) -> list[CohortGroup]:
    """Groups of several statements that one thing kept: each step's blocks went one right after
    the other, when all of them were given back.
    """
    leaks: list[CohortGroup] = []
    for group in groups:
        for other in leaks:
            is_near = other.statement[:-1] == group.statement[:-1]
            if is_near and _went_together(view, other, group):
                other.cohorts = sorted(
                    [*other.cohorts, *group.cohorts], key=_bytes_of(view), reverse=True
                )
                break
        else:
            leaks.append(group)
    return leaks


def _bytes_of(view: Attribution) -> Callable[[Cohort], int]:
    sizes = view.device.allocations.requested_bytes
    return lambda cohort: int(sizes[cohort.rows].sum())


def _went_together(view: Attribution, first: CohortGroup, second: CohortGroup) -> bool:
    """Whether the largest blocks of two groups were kept in the same steps, and given back in the
    same order, with nothing between those of a step. What an optimizer asks for is apart.
    """
    if any(group.cohorts[0].state is not None for group in (first, second)):
        return False
    given_up = [_ends_of_largest(view, group.cohorts[0].rows) for group in (first, second)]
    both = given_up[0].keys() & given_up[1].keys()
    if len(both) < max(_GRAPH_STACKS, _ALIKE * max(map(len, given_up))):
        return False
    next_to = sum(abs(given_up[0][step] - given_up[1][step]) <= _NEXT_TO for step in both)
    return next_to >= _ALIKE * len(both)


def _ends_of_largest(view: Attribution, rows: NDArray[np.int64]) -> dict[int, int]:
    """By step the event that gave back its largest block, of those that were given back."""
    allocations = view.device.allocations
    gone = rows[allocations.free_requested[rows] < len(view.device.events)]
    gone = gone[np.argsort(allocations.requested_bytes[gone], kind="stable")]  # the largest is last
    steps, events = view.step[gone].tolist(), allocations.free_requested[gone].tolist()
    return dict(zip(steps, events, strict=True))


def place_of(view: Attribution, loop: StepLoop, cohorts: Sequence[Cohort]) -> Place | None:
    """The innermost user line that all cohorts have in common.

    Where several statements of the loop's own function keep them, it is the one with most bytes:
    what the loop was called from says nothing.
    """
    paths = _user_paths(view, loop, cohorts)
    if not paths:
        frame = next((cohort.frame for cohort in cohorts if cohort.frame >= 0), -1)
        return view.place(frame)
    shared = paths[0][0]
    for path, _ in paths[1:]:
        shared = shared[: common_length(shared, path)]
    if len(shared) < loop.depth:
        statement = _largest_statement(view, paths, len(shared))
        if statement is not None:
            return view.place(statement)
    if shared:
        return view.place(shared[-1])
    return view.place(max(paths, key=lambda cohort: cohort[1])[0][-1])


def _user_paths(
    view: Attribution, loop: StepLoop, cohorts: Sequence[Cohort]
) -> list[tuple[list[int], int]]:
    sizes = view.device.allocations.requested_bytes
    paths = (
        (loop.user_frames(cohort.stack).tolist(), int(sizes[cohort.rows].sum()))
        for cohort in cohorts
        if cohort.stack != NO_STACK
    )
    return [(path, size) for path, size in paths if path]


def _largest_statement(
    view: Attribution, paths: Sequence[tuple[list[int], int]], depth: int
) -> int | None:
    """The frame with most bytes where paths part in several statements of one function; None
    where they part otherwise.
    """
    stacks = view.trace.stacks
    below = [(path[depth], size) for path, size in paths if len(path) > depth]
    functions = {(stacks.frame_file[frame], stacks.frame_function[frame]) for frame, _ in below}
    if len(below) < len(paths) or len(functions) != 1:
        return None
    bytes_of: Counter[int] = Counter()
    for frame, size in below:
        bytes_of[frame] += size
    return max(bytes_of, key=lambda frame: bytes_of[frame])
