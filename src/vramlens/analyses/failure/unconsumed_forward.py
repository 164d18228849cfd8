"""Forward passes that no backward pass has used when memory ran out: sampling without ``no_grad``.

A model in train mode keeps its activations on every call. Where more calls are waiting than any
backward pass ever used at once, none is likely to come. Where no backward pass was ever seen, a
first step that calls the model many times (a solver) looks the same: then it is only possible, unless the
program has no optimizer that such a step could be for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.parameter_uses import all_around
from vramlens.analyses.attribution.steps import PATTERN
from vramlens.analyses.attribution.training import (
    LEAST_KEPT_SHARE,
    Training,
    kept_share,
    may_train,
    pass_starts,
)
from vramlens.analyses.extent import Extent
from vramlens.analyses.failure.failed_request import Failure
from vramlens.analyses.finding import Finding
from vramlens.ground.verdict import Verdict
from vramlens.trace import Frame, TensorKind
from vramlens.units import format_size

_FEWEST_PASSES, _FEWEST_WITHOUT_OPTIMIZER = 3, 5
_FEWEST_SHARE = 0.25
"""Of what is alive: less is not why it failed."""


@dataclass(frozen=True, slots=True)
class WaitingPasses:
    """Forward passes whose memory waits for a backward pass.

    Attributes:
        count: how many there are.
        usual: the most that one backward pass used before; None where there was none.
        may_train: whether the program has an optimizer, as far as is known.
    """

    count: int
    usual: int | None
    may_train: bool = True

    @property
    def verdict(self) -> Verdict | None:
        """How surely no backward pass is to come; None where one may well be."""
        if self.usual is None and self.count >= _FEWEST_PASSES:
            return Verdict.POSSIBLE if self.may_train else Verdict.LIKELY
        if self.usual is None:
            return None
        return Verdict.LIKELY if self.count >= max(_FEWEST_PASSES, 2 * self.usual) else None


def waiting_passes(
    pass_starts: NDArray[np.int64], backward_ends: NDArray[np.int64]
) -> WaitingPasses:
    """The passes after the last backward pass, beside the most that came before any.

    Args:
        pass_starts: the event at which each forward pass begins.
        backward_ends: the event at which each backward pass ends.
    """
    if not len(backward_ends):
        return WaitingPasses(len(pass_starts), None)
    gap = np.searchsorted(backward_ends, pass_starts)
    by_gap = np.bincount(gap, minlength=len(backward_ends) + 1)
    return WaitingPasses(int(by_gap[-1]), int(by_gap[:-1].max()))


def unconsumed_forward(view: Attribution, failure: Failure) -> list[Finding]:
    """The finding that forward passes keep memory which no backward pass may ever use."""
    event, allocations, phases = failure.request.event, view.device.allocations, view.phases
    marked = np.flatnonzero(view.modules.trains)
    marked = marked[allocations.born[marked] < event]
    ended = phases.ends_before(event)
    if view.training == Training.ABSENT or not len(marked):
        return []  # what it keeps are results: no graph is among them
    if (phases.span_start < event).sum() > len(ended):
        return []
    waiting = waiting_passes(_begun_with_graph(view, marked), ended)
    since = int(ended[-1]) if len(ended) else -1
    kept_rows = marked[(allocations.born[marked] > since) & (allocations.died[marked] >= event)]
    # Before any backward pass, a solver's states are tensors that only the graph keeps, too.
    by_program = view.names.named if waiting.usual is None else view.names.placed
    kept_rows = kept_rows[~by_program[kept_rows]]
    waiting = _without_optimizer(view, waiting, kept_rows)
    kept_bytes = int(allocations.requested_bytes[kept_rows].sum())
    verdict = waiting.verdict
    if verdict is None or kept_bytes < _FEWEST_SHARE * failure.live_bytes:
        return []
    if waiting.usual is not None:
        before = f"earlier backward passes used at most {waiting.usual}"
    elif waiting.may_train:
        before = "none has run so far"
    else:
        before = "none has run so far, and the program has no optimizer"
    return [
        Finding(
            id="unconsumed_forward",
            verdict=verdict,
            title=f"{waiting.count} forward passes keep {format_size(kept_bytes)} for a backward"
            f" pass: {before}",
            bytes=kept_bytes,
            place=view.place_of_stack(failure.request.stack),
            evidence=("autograd keeps activations in train mode and in eval mode",),
            fix=_fix(view.trace.stacks.of(failure.request.stack), format_size(kept_bytes)),
            extent=Extent(event, kept_rows),
        )
    ]


def _fix(frames: Sequence[Frame], saved: str) -> str:
    """What to do; calls of a generator expression run where a line reads it, perhaps after the block that was to
    cover them.

    Args:
        frames: of the request that failed, the innermost first.
    """
    for frame, reader in pairwise(frames):
        if frame.function == "<genexpr>" and reader.line != frame.line:
            return (
                f"if no backward() will run (sampling, inference), move {reader.place} into torch.no_grad() to"
                f" save up to {saved}: it reads the generator of line {frame.line}, whose calls run there;"
                " torch.no_grad() around the line that makes a generator does not cover them"
            )
    return (
        "if no backward() will run (sampling, inference), wrap these calls in torch.no_grad() to save"
        f" up to {saved}"
    )


def _without_optimizer(
    view: Attribution, waiting: WaitingPasses, kept_rows: NDArray[np.int64]
) -> WaitingPasses:
    """The passes whose memory is there, where a program with weights and without an optimizer made them:
    calls of one module alone are told apart by the requests that repeat.
    """
    has_weights = len(view.names.of_kind(TensorKind.PARAMETER)) > 0
    if waiting.usual is not None or not has_weights or may_train(view):
        return waiting
    starts = pass_starts(view.modules, np.flatnonzero(view.modules.trains))
    turns = [np.searchsorted(starts, kept_rows, side="right")]
    if view.steps.source == PATTERN:
        turns.append(view.step[kept_rows])
    # A module with others inside of it works between their turns, too.
    outer = all_around(path.rpartition(".")[0] for path in view.modules.paths)
    is_leaf = np.array([path not in outer for path in view.modules.paths])
    module = view.modules.module[kept_rows]
    is_of_leaf = is_leaf[module]
    count = max(_turns_of_a_module(module[is_of_leaf], turn[is_of_leaf]) for turn in turns)
    is_many = count >= _FEWEST_WITHOUT_OPTIMIZER
    return WaitingPasses(count, None, may_train=False) if is_many else waiting


def _turns_of_a_module(module: NDArray[np.int64], turn: NDArray[np.int64]) -> int:
    """In how many turns the module made something that made it in most."""
    pairs = np.unique(np.stack([module, turn]), axis=1)
    return int(np.unique(pairs[0], return_counts=True)[1].max(initial=0))


def _begun_with_graph(view: Attribution, marked: NDArray[np.int64]) -> NDArray[np.int64]:
    """The events at which the passes begin that keep a graph: those under no_grad wait for
    nothing.
    """
    starts = pass_starts(view.modules, marked)
    passes = np.split(marked, np.searchsorted(marked, starts[1:]))
    with_graph = [
        pass_rows[0]
        for pass_rows in passes
        if kept_share(view.device, pass_rows) >= LEAST_KEPT_SHARE
    ]
    return view.device.allocations.born[np.array(with_graph, np.int64)]
