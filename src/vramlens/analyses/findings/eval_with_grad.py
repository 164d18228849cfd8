"""Evaluation with gradients enabled: ``model.eval()`` changes layers, it does not stop autograd."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.attribution.phases import MODULE_CALL
from vramlens.analyses.evaluation_passes import Evaluation, given_up_to_backward
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.findings.faults.graphs.derivative_graphs import (
    derivative_graphs,
    derivatives_after,
)
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK
from vramlens.units import MIB, format_size

_LEAST_BYTES = MIB
_MOST_MODULES = 3
_THREAD = re.compile(r"[/\\]threading\.py:_bootstrap")
_LEAST_OF_IDLE = 0.25
"""Of what is in use: what layers keep whose checkpoints are left out."""


def eval_with_grad(scene: Scene) -> Iterator[Finding]:
    """What evaluation keeps for autograd without need: at the failure, else what the peak would
    be lower by; or what training keeps in eval mode, where the program forgot to leave it.
    """
    evaluation = scene.evaluation
    if evaluation is None:
        yield from _without_checkpoints(scene)
        return
    failed_event = scene.failed_event
    if failed_event is not None and any(derivative_graphs(scene)):
        return  # the steps ask for derivatives, which torch.no_grad() around them would forbid
    caller = _calling_frame(scene.view, evaluation.rows)
    place = None if caller is None else scene.view.place(caller)
    if failed_event is not None and _is_training(scene.view, evaluation, caller):
        first_event = int(scene.device.allocations.born[evaluation.rows].min())
        if derivatives_after(scene, first_event):
            return  # the program asks for the derivatives of what it evaluates
        yield _training_in_eval_mode(scene, evaluation, failed_event, place)
        return
    curve = scene.device.requested_curve
    most_bytes = int(evaluation.kept_bytes.max())
    if failed_event is None:
        when = "at the peak"
        saved = scene.device.requested.peak_bytes - int((curve - evaluation.kept_bytes).max())
    else:
        when = "when the request failed"
        saved = evaluation.kept_at(failed_event)
    helps = saved > 0
    size_bytes = saved if helps else most_bytes
    if size_bytes < _LEAST_BYTES:
        return
    evidence = [f"{format_size(most_bytes)} at most are in use only because gradients were enabled"]
    if not helps:
        evidence.append(f"none of it is in use {when}, so this would not lower that")
    in_thread = _runs_in_thread(scene, evaluation.rows)
    if in_thread:
        evidence.append(
            "it ran in a thread of its own: torch.set_grad_enabled(False) and no_grad() hold for"
            " the thread that calls them"
        )
    modules = _outermost_modules(scene.view, evaluation.rows)
    evidence.append(f"these modules ran in eval mode with gradients enabled: {modules}")
    where = ", in the function that the thread runs" if in_thread else ""
    effect = f"about {format_size(size_bytes)} less" + (f" {when}" if helps else "")
    yield Finding(
        id="eval_with_grad",
        verdict=_verdict(evaluation),
        title="model.eval() does not disable autograd: evaluation keeps about "
        f"{format_size(size_bytes)} for {_needless_work(evaluation)}",
        bytes=size_bytes,
        place=place,
        evidence=tuple(evidence),
        fix=f"{_remedy(evaluation)}{where} ({effect})",
        extent=Extent(
            int(evaluation.kept_bytes.argmax()) if failed_event is None else failed_event,
            evaluation.rows,
        ),
        recurs=helps and _goes_on(scene, evaluation.rows),
    )


def _idle_checkpointing(scene: Scene) -> str:
    """The class of a layer that has gradient checkpointing and is in eval mode; "" without one."""
    failure = scene.ending_failure
    return "" if failure is None else failure.idle_checkpointing or ""


def _without_checkpoints(scene: Scene) -> Iterator[Finding]:
    """What layers keep in eval mode since the last backward pass, though they have checkpoints."""
    idle_layer = _idle_checkpointing(scene)
    if not idle_layer:
        return
    view, allocations, rows = scene.view, scene.device.allocations, scene.advice_rows
    is_since = allocations.born[rows] > scene.last_backward_end
    rows = rows[view.modules.eval_with_grad[rows] & is_since & ~view.names.placed[rows]]
    size_bytes = scene.bytes_of(rows)
    if size_bytes < _LEAST_OF_IDLE * scene.advice_heap.requested_bytes:
        return
    yield Finding(
        id="eval_with_grad",
        verdict=Verdict.LIKELY,
        title=f"{idle_layer} has gradient checkpointing, but does not use it now: the model is in"
        " eval mode, with gradients",
        bytes=size_bytes,
        place=view.place_of_block(allocations.largest_of(rows)),
        evidence=("transformers uses gradient checkpointing in training mode only",),
        fix="call model.train() before training goes on, as after each evaluation: checkpointing"
        f" then saves much of {format_size(size_bytes)}. If this is an evaluation, wrap it in"
        " torch.no_grad()",
        extent=scene.extent(rows),
    )


def _goes_on(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether the pass that failed is one of these: it was to keep more."""
    is_marked = scene.view.modules.marked & (scene.device.allocations.born < scene.advice_event)
    newest = np.flatnonzero(is_marked)[-1:]
    return scene.failed_event is not None and bool(np.isin(newest, rows).any())


def _runs_in_thread(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether a thread that the program started made these."""
    stacks = scene.device.allocations.stack[rows]
    return bool(scene.trace.stacks.within(_THREAD, stacks).all())


def _is_training(view: Attribution, evaluation: Evaluation, caller: int | None) -> bool:
    """Whether the pass is one of training: the frame that calls the model trained it before, and
    evaluation without gradients has just ended.
    """
    if evaluation.ended or caller is None:
        return False
    allocations, modules, stacks = view.device.allocations, view.modules, view.trace.stacks
    first = int(allocations.born[evaluation.rows].min())
    before = np.flatnonzero(modules.marked & (allocations.born < first))
    if not len(before) or not modules.without_grad[before[-1]]:
        return False
    of_line = np.searchsorted(stacks.starts, np.flatnonzero(stacks.frames == caller), "right") - 1
    own = before[np.isin(allocations.stack[before], of_line)]
    return bool(given_up_to_backward(view, own).any())


def _training_in_eval_mode(
    scene: Scene, evaluation: Evaluation, event: int, place: Place | None
) -> Finding:
    size_bytes = evaluation.kept_at(event)
    return Finding(
        id="eval_with_grad",
        verdict=Verdict.LIKELY,
        title="The model is still in eval mode where it is trained: backward passes went through"
        " what this line computed before the evaluation",
        bytes=size_bytes,
        place=place,
        evidence=(
            "in eval mode dropout is off, and so is the gradient checkpointing of a library",
        ),
        fix="call model.train() before training goes on: gradient checkpointing, where it is on,"
        f" saves much of {format_size(size_bytes)}",
        extent=Extent(event, evaluation.rows),
    )


def _verdict(evaluation: Evaluation) -> Verdict:
    if not evaluation.sure:
        return Verdict.POSSIBLE
    return Verdict.PROVEN if evaluation.ended and not evaluation.unstepped else Verdict.LIKELY


def _needless_work(evaluation: Evaluation) -> str:
    if evaluation.unstepped:
        return "gradients that no optimizer uses"
    if evaluation.sure:
        return "a backward pass that never runs"
    return "a backward pass that may never run"


def _remedy(evaluation: Evaluation) -> str:
    """What to change; under a condition where a backward pass may have to go through it."""
    if evaluation.unstepped and evaluation.sure:
        return "call the model that is in eval mode in torch.no_grad(): no optimizer trains it"
    if evaluation.unstepped:
        return (
            "if no trained model's output goes into the model that is in eval mode, call that in "
            "torch.no_grad(); else call requires_grad_(False) on it"
        )
    wrapped = "wrap the evaluation in torch.no_grad() or torch.inference_mode()"
    return wrapped if evaluation.sure else f"if no backward() follows, {wrapped}"


def _outermost_modules(view: Attribution, rows: NDArray[np.int64]) -> str:
    """The names of the models, the first three."""
    modules = np.unique(view.modules.module[rows]).tolist()
    names = sorted({view.modules.paths[module].split(".", 1)[0] for module in modules})
    more = " and others" if len(names) > _MOST_MODULES else ""
    return ", ".join(names[:_MOST_MODULES]) + more


def _calling_frame(view: Attribution, rows: NDArray[np.int64]) -> int | None:
    """The user's frame that calls the model: the first one outside of its outermost module, where
    most bytes are.
    """
    stacks, allocations = view.trace.stacks, view.device.allocations
    calls = stacks.mark_frames(MODULE_CALL)
    by_stack: Counter[int] = Counter()
    sizes = allocations.requested_bytes[rows].tolist()
    for stack, size in zip(allocations.stack[rows].tolist(), sizes, strict=True):
        by_stack[stack] += size
    by_frame: Counter[int] = Counter()
    for stack, size in by_stack.items():
        if stack == NO_STACK:
            continue
        frames = stacks.frames[stacks.starts[stack] : stacks.starts[stack + 1]]
        call_depths = np.flatnonzero(calls[frames])
        outside = frames[int(call_depths[-1]) + 1 :] if len(call_depths) else frames
        user_frames = outside[stacks.user_frames[outside]]
        if len(user_frames):
            by_frame[int(user_frames[0])] += size
    if not by_frame:
        return None
    return max(by_frame, key=lambda frame: by_frame[frame])
