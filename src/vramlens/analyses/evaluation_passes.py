"""Evaluation passes: what they keep as if a backward pass were to come.

Module marks say of each allocation whether its model was in eval mode while gradients were enabled.
What then waits for a backward pass that never comes is what ``torch.no_grad()`` would not have
kept. So is what a backward pass uses for gradients that no optimizer steps with: a teacher's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.training import (
    DERIVATIVE_FRAME,
    kept_share,
    may_train,
    spans_with,
)
from vramlens.analyses.unstepped_modules import runs_before_training, unstepped_rows
from vramlens.trace import TensorKind

FEWEST_ALLOCATIONS = 8
"""Fewer are not a pass through a model."""
_KEPT_SHARE = 0.5
"""Of what a pass asks for, so much alive at once means that the pass keeps what it computes."""
_KEPT_REQUESTS_SHARE = 0.35
"""So many of its requests are alive at its end, too. Graphs of evaluation kept 37 to 94% of theirs, the
fewest where messages go along edges; key-value caches and features that a program keeps of passes
without a graph are 14 to 32% (H100 and H200, PyTorch 2.11).
"""
_MANY_REQUESTS, _KEPT_BESIDE_WORKSPACES = 0.4, 0.33
"""Of so many of its requests, the bytes that are enough: workspaces of convolutions may take as much as all
results (37% are kept of a residual network in eval mode, whose graph has 45% of the requests).
"""
_MANY_PASSES = 3
"""With graphs, and no backward pass between them, where no optimizer is there."""
_NEVER = np.iinfo(np.int64).max
_BRIEF_REQUESTS = 3
"""Without a graph a result is gone so many requests later."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What evaluation keeps for autograd without need.

    Attributes:
        rows: the allocations that no backward pass makes use of.
        kept_bytes: after each event, what of them would be gone without a graph.
        ended: whether a whole pass was given up without any backward pass; else one may still have
            been to come.
        unstepped: whether a backward pass runs, for gradients that no optimizer uses.
        sure: whether no backward pass has to go through it: it is not a first step of training in eval
            mode, and no other model's gradients pass through it.
    """

    rows: NDArray[np.int64]
    kept_bytes: NDArray[np.int64]
    ended: bool
    unstepped: bool
    sure: bool

    def kept_at(self, event: int) -> int:
        """The bytes kept right after an event; 0 before the first."""
        return int(self.kept_bytes[event]) if 0 <= event < len(self.kept_bytes) else 0


def evaluation_of(view: Attribution) -> Evaluation | None:
    """The evaluation with gradients enabled; None where it keeps nothing, or nothing is marked."""
    passes = _unused_passes(view)
    unstepped = not passes
    if unstepped:
        passes = _passes_of(view, unstepped_rows(view))
    if not passes:
        return None
    rows = np.concatenate(passes)
    given_up = view.device.allocations.free_requested < len(view.device.events)
    ended = any(bool(given_up[pass_rows].all()) for pass_rows in passes)
    if unstepped:
        is_sure = runs_before_training(view, rows)
    else:
        is_many = len(passes) >= _MANY_PASSES and not may_train(view)
        is_sure = ended or is_many or _is_no_first_step(view)
    return Evaluation(
        rows=rows,
        unstepped=unstepped,
        sure=is_sure,
        kept_bytes=view.device.requested_curve - curve_without_graph(view, rows),
        ended=ended,
    )


def _unused_passes(view: Attribution) -> list[NDArray[np.int64]]:
    """The passes of evaluation with gradients enabled, of modules whose like no backward pass gave
    up.

    A model may be trained in eval mode (frozen statistics): then its backward passes give its
    activations up. A tensor whose name says where it is kept is held by the program itself and would be without a
    graph too.
    """
    marked = np.flatnonzero(view.modules.eval_with_grad & (view.phases.span < 0))
    if not len(marked):
        return []
    trained_rows = marked[given_up_to_backward(view, marked)]
    trained_modules = np.unique(view.modules.module[trained_rows])
    unused = ~np.isin(view.modules.module, trained_modules) & ~view.names.placed
    # Where no parameter wants a gradient there is no graph, whatever the mode: such a pass keeps
    # little.
    passes = [pass_rows for pass_rows, _ in keeping_passes(view, marked)]
    unused_rows = [pass_rows[unused[pass_rows]] for pass_rows in _without_derivatives(view, passes)]
    return [pass_rows for pass_rows in unused_rows if len(pass_rows)]


def _without_derivatives(
    view: Attribution, passes: Sequence[NDArray[np.int64]]
) -> list[NDArray[np.int64]]:
    """The passes of which ``autograd.grad`` asks for no derivative before a module runs again: forces
    need a graph in evaluation, too.
    """
    born = view.device.allocations.born
    derivatives = view.phases.span_start[spans_with(view, DERIVATIVE_FRAME)]
    runs = born[view.modules.marked & (view.phases.span < 0)]
    without_derivatives = []
    for pass_rows in passes:
        end = int(born[pass_rows[-1]])
        next_run = int(runs[np.searchsorted(runs, end, side="right") :].min(initial=_NEVER))
        if not ((derivatives > end) & (derivatives < next_run)).any():
            without_derivatives.append(pass_rows)
    return without_derivatives


def _passes_of(view: Attribution, rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The passes that keep what they compute, without what the program itself holds."""
    passes = [pass_rows for pass_rows, _ in keeping_passes(view, rows)]
    return [pass_rows[~view.names.placed[pass_rows]] for pass_rows in passes]


def _is_no_first_step(view: Attribution) -> bool:
    """Whether another model is there to be trained, or the same one was trained before: else this
    may be the first step of training in eval mode (frozen statistics).
    """
    if (view.modules.marked & ~view.modules.eval_with_grad).any() or len(view.phases.span_start):
        return True
    table = view.trace.names
    if table is None:
        return True
    parameters = [table.name[row] for row in np.flatnonzero(table.kind == TensorKind.PARAMETER)]
    roots = {name.partition(".")[0] for name in parameters}
    return len(roots) != 1 or len(set(parameters)) < len(parameters)


def given_up_to_backward(view: Attribution, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """One flag a row: whether the first backward pass after it gave it up."""
    starts = view.phases.span_start
    if not len(starts):
        return np.zeros(len(rows), np.bool_)
    allocations = view.device.allocations
    born, span = allocations.born[rows], view.phases.span_at(allocations.free_requested[rows])
    own_span, span_before = np.maximum(span, 0), np.maximum(span - 1, 0)
    is_inside = (span >= 0) & (born < starts[own_span])
    # What lived through an earlier backward pass was not kept for this one.
    is_first = (span == 0) | (born >= starts[span_before])
    return np.asarray(is_inside & is_first)


def keeping_passes(
    view: Attribution, rows: NDArray[np.int64]
) -> list[tuple[NDArray[np.int64], int]]:
    """The passes that keep most of what they ask for, as only a graph does, and the most bytes of
    each at once.

    A pass: some allocations with nothing else in between, begun anew where the first line comes
        again.
    """
    allocations = view.device.allocations
    if len(rows) < FEWEST_ALLOCATIONS:
        return []
    stack = allocations.stack[rows]
    of_first_line = stack == stack[0]
    comes_again = of_first_line & np.append(True, ~of_first_line[:-1])
    begins = np.append(True, np.diff(rows) > 1) | comes_again
    passes = []
    for pass_rows in np.split(rows, np.flatnonzero(begins)[1:]):
        if len(pass_rows) < FEWEST_ALLOCATIONS:
            continue
        requests_share = kept_share(view.device, pass_rows)
        if requests_share < _KEPT_REQUESTS_SHARE:
            continue
        least_share = _KEPT_SHARE if requests_share < _MANY_REQUESTS else _KEPT_BESIDE_WORKSPACES
        _, most_bytes = allocations.fullest(pass_rows)
        if most_bytes >= least_share * int(allocations.requested_bytes[pass_rows].sum()):
            passes.append((pass_rows, most_bytes))
    return passes


def without_retained(
    view: Attribution, passes: Sequence[tuple[NDArray[np.int64], int]]
) -> list[tuple[NDArray[np.int64], int]]:
    """The passes through whose modules no backward pass ran that gave nothing of them up.

    ``backward(retain_graph=True)``, or into a part of the graph: the graph was used, and it stays.
    """
    allocations, phases, modules = view.device.allocations, view.phases, view.modules
    marked = np.flatnonzero(modules.marked)
    given_up = marked[given_up_to_backward(view, marked)]
    span_given_up = np.searchsorted(
        phases.span_start, allocations.free_requested[given_up], "right"
    )
    in_backward = marked[phases.span[marked] >= 0]
    modules_used = _modules_by_span(view, phases.span[in_backward], in_backward)
    modules_given_up = _modules_by_span(view, span_given_up - 1, given_up)

    def is_retained(pass_rows: NDArray[np.int64]) -> bool:
        ended = allocations.born[pass_rows[-1]]
        kept_until = int(np.median(allocations.free_requested[pass_rows]))
        spans = range(*np.searchsorted(phases.span_start, (ended, kept_until)).tolist())
        own_modules = set(modules.module[pass_rows].tolist())
        return any(
            own_modules & modules_used[span] and not own_modules & modules_given_up[span]
            for span in spans
        )

    return [pair for pair in passes if not is_retained(pair[0])]


def _modules_by_span(
    view: Attribution, spans: NDArray[np.int64], rows: NDArray[np.int64]
) -> list[set[int]]:
    by_span: list[set[int]] = [set() for _ in view.phases.span_start]
    for span, module in zip(spans.tolist(), view.modules.module[rows].tolist(), strict=True):
        by_span[span].add(module)
    return by_span


def curve_without_graph(view: Attribution, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Requested bytes after each event, had each of these been gone three requests later, as
    without a graph.
    """
    allocations, events = view.device.allocations, len(view.device.events)
    born = allocations.born[rows]
    never = np.full(min(_BRIEF_REQUESTS, len(born)), events)
    soon = np.append(born[_BRIEF_REQUESTS:], never)
    earlier = soon < allocations.died[rows]
    sizes = allocations.requested_bytes[rows[earlier]]
    change = np.zeros(events + 1, np.int64)
    np.add.at(change, soon[earlier], -sizes)
    np.add.at(change, allocations.died[rows[earlier]], sizes)
    return np.asarray(view.device.requested_curve + np.cumsum(change)[:-1])
