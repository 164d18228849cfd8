"""Evaluation with gradients enabled: ``model.eval()`` changes layers, it does not stop autograd.

Module marks say of each allocation whether its model was in eval mode while gradients were enabled.
What then waits for a backward pass that never comes is what ``torch.no_grad()`` would not have
kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.phases import MODULE_CALL
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.findings.unused_graph import curve_without_graph, keeping_passes
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.units import MIB, format_size

_LEAST_BYTES = MIB


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What evaluation keeps for autograd without need.

    Attributes:
        rows: the allocations that no backward pass makes use of.
        kept_bytes: after each event, what of them would be gone without a graph.
        ended: whether a whole pass was given up without any backward pass; else one may still have
            been to come.
    """

    rows: NDArray[np.int64]
    kept_bytes: NDArray[np.int64]
    ended: bool

    def kept_at(self, event: int) -> int:
        """The bytes kept right after an event; 0 before the first."""
        return int(self.kept_bytes[event]) if 0 <= event < len(self.kept_bytes) else 0


def evaluation_of(view: Attribution) -> Evaluation | None:
    """What evaluation with gradients enabled keeps; None where it keeps nothing, or nothing is
    marked.
    """
    passes = _unused(view)
    if not passes:
        return None
    rows = np.concatenate(passes)
    given_up = view.device.allocations.free_requested < len(view.device.events)
    ended = any(bool(given_up[mine].all()) for mine in passes)
    return Evaluation(rows, view.device.requested_curve - curve_without_graph(view, rows), ended)


def eval_with_grad(
    view: Attribution, evaluation: Evaluation | None, event: int | None = None
) -> list[Finding]:
    """The finding about it.

    Args:
        event: the failure, if there was one: what is kept then counts; else what the peak would be
            lower.
    """
    if evaluation is None:
        return []
    rows, kept = evaluation.rows, evaluation.kept_bytes
    most = int(kept.argmax())
    lowered = view.device.requested.peak_bytes - int((view.device.requested_curve - kept).max())
    saved = lowered if event is None else evaluation.kept_at(event)
    at_issue = saved if saved > 0 else int(kept[most])
    if at_issue < _LEAST_BYTES:
        return []
    when = "when the request failed" if event is not None else "at the peak"
    evidence = [
        f"{format_size(int(kept[most]))} at most are alive only because gradients were enabled"
    ]
    if saved <= 0:
        evidence.append(f"none of it is there {when}: it does not lower that")
    modules = np.unique(view.modules.module[rows])
    roots = sorted({view.modules.paths[m].split(".", 1)[0] for m in modules.tolist()})
    others = " and others" if len(roots) > 3 else ""
    evidence.append(
        f"these ran in eval mode with gradients enabled: {', '.join(roots[:3])}{others}"
    )
    effect = (
        f"about {format_size(at_issue)} less {when}"
        if saved > 0
        else f"about {format_size(at_issue)} less"
    )
    return [
        Finding(
            id="eval_with_grad",
            verdict=Verdict.PROVEN if evaluation.ended else Verdict.LIKELY,
            title="model.eval() does not stop autograd: evaluation keeps about "
            f"{format_size(at_issue)} for a backward pass that never comes",
            bytes=at_issue,
            place=_caller(view, rows),
            evidence=tuple(evidence),
            fix=f"wrap the evaluation in torch.no_grad() or torch.inference_mode() ({effect})",
        )
    ]


def _unused(view: Attribution) -> list[NDArray[np.int64]]:
    """The passes of evaluation with gradients enabled, of modules whose like no backward pass gave
    up.

    A model may be trained in eval mode (frozen statistics): then its backward passes give its
    activations up. A tensor that has a name is held by the program itself and would be without a
    graph too.
    """
    marked = np.flatnonzero(view.modules.eval_with_grad & (view.phases.span < 0))
    if not len(marked):
        return []
    allocations, phases = view.device.allocations, view.phases
    starts, ends = phases.span_start, phases.span_end
    used = np.zeros(len(marked), np.bool_)
    if len(starts):
        born, freed = allocations.born[marked], allocations.free_requested[marked]
        span = np.searchsorted(starts, freed, side="right") - 1
        inside = (
            (span >= 0) & (freed < ends[np.maximum(span, 0)]) & (born < starts[np.maximum(span, 0)])
        )
        # What lived through an earlier backward pass was not kept for this one.
        used = inside & ((span == 0) | (born >= starts[np.maximum(span - 1, 0)]))
    training = np.unique(view.modules.module[marked[used]])
    unused = ~np.isin(view.modules.module, training) & ~view.names.named
    # Where no parameter wants a gradient there is no graph, whatever the mode: such a pass keeps
    # little.
    passes = [mine[unused[mine]] for mine, _ in keeping_passes(view, marked)]
    return [mine for mine in passes if len(mine)]


def _caller(view: Attribution, rows: NDArray[np.int64]) -> Place | None:
    """The user's line that calls the model: the first one outside of its outermost module, where
    most bytes are.
    """
    stacks, allocations = view.trace.stacks, view.device.allocations
    calls = stacks.mark_frames(MODULE_CALL)
    totals: dict[int, int] = {}
    for stack, size in zip(
        allocations.stack[rows].tolist(), allocations.requested_bytes[rows].tolist(), strict=True
    ):
        totals[stack] = totals.get(stack, 0) + size
    by_frame: dict[int, int] = {}
    for stack, size in totals.items():
        if stack == NO_STACK:
            continue
        frames = stacks.frames[stacks.starts[stack] : stacks.starts[stack + 1]]
        inner = np.flatnonzero(calls[frames])
        outside = frames[int(inner[-1]) + 1 :] if len(inner) else frames
        outside = outside[stacks.user_frames[outside]]
        if len(outside):
            by_frame[int(outside[0])] = by_frame.get(int(outside[0]), 0) + size
    return view.place(max(by_frame, key=lambda frame: by_frame[frame])) if by_frame else None
