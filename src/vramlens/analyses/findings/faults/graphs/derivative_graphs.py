"""Graphs of derivatives that the program asked for on its way, and that something keeps together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.categories import Category
from vramlens.analyses.attribution.phases import Phase
from vramlens.analyses.attribution.training import (
    BACKWARD_FRAME,
    DERIVATIVE_FRAME,
    may_train,
    spans_with,
)
from vramlens.analyses.finding import Finding
from vramlens.analyses.scene import Scene
from vramlens.ground.verdict import Verdict
from vramlens.trace import TensorKind
from vramlens.units import format_size

_SIGNS = re.compile(r"grad\w*(?:\[[^\]]*\])?\.sign\(\)|\btorch\.sign\(\s*[\w.]*grad")
"""Signs of a gradient, which attacks take."""
_BY_MODE = re.compile(r"\bcreate_graph\s*=\s*[\w.]*training\b")
"""A derivative whose graph is for training alone."""
_LEAST_SHARE = 0.4
"""Of what is in use."""
_MOST_GIVEN_UP = 0.5
"""Of what the derivatives left, that their own backward passes gave back."""
_FEWEST = 20
"""Steps that each asked for a derivative with its graph. Meta-learning takes 1 to 10 inner steps (MAML:
5 to train, 10 to test), and an equation of two derivatives asks about as often.
"""
_FEWEST_WITHOUT_WEIGHTS = 11
"""The same, where the recording names tensors and no weight among them, and no optimizer. Such a program may
still keep weights as plain tensors, and take inner steps of meta-learning.
"""
_FEWEST_BEYOND_TRAINING = 6
"""The same, where training has shown how many go with one backward pass: one, say, for forces."""
_FEWEST_BY_INPUT = 3
"""The same, of derivatives by an input, with no gradient of a weight among them: two penalties of a
discriminator are usual.
"""
_FEWEST_TASKS = 2
"""Of meta-learning, whose inner steps are over."""
_LONGER = 1.5
"""Times the shortest pause between two derivatives: there a task's own loss is computed."""
_TIMES_THE_USUAL = 4
"""As many as before any backward pass so far: a horizon is doubled, not made four times as long."""
_TIMES_BY_MODE = 2
"""The same where the source says that graphs are for training alone."""
_LEAST_COMPUTED = 0.1
"""Of what a step leaves: what it computed before its derivative. Of several derivatives of one result
only the first has it.
"""


@dataclass(frozen=True, slots=True)
class _Chain:
    """Derivatives that were asked for one after the other.

    Attributes:
        spans: their calls of ``autograd.grad``, as numbers of backward passes.
        fewest: from how many on they are too many to be meant.
        begins: the event of the last backward pass or optimizer step before them.
        counts_next: whether a step that has begun, and not come to its derivative, is one more.
        verdict: how sure it is that they are too many.
        keeper: what keeps their graphs, in words that end "...: ".
        unless: on which condition they are needed.
        remedy: what to do, and what comes of it.
        evidence: how a derivative comes to keep what it was asked for.
        frees_its_graphs: whether each derivative gives its own graph back.
    """

    spans: NDArray[np.int64]
    fewest: int
    begins: int
    counts_next: bool = False
    verdict: Verdict = Verdict.LIKELY
    keeper: str = "the graph goes on from one step to the next"
    unless: str = "unless one backward pass is to go through all these steps"
    remedy: str = (
        "detach what goes from one step to the next (positions, forces, energies: x = x.detach()):"
        " then each step's graph goes with the step"
    )
    evidence: str = (
        "with create_graph=True a derivative has a graph of its own, and keeps that of its step"
    )
    frees_its_graphs: bool = False


def derivative_graphs(scene: Scene) -> Iterator[Finding]:
    """What steps left that each asked ``autograd.grad`` for a derivative with its graph, of a state that
    is not detached between them.
    """
    chain = _chain(scene)
    if chain is None or not len(chain.spans):
        return
    view, allocations = scene.view, scene.device.allocations
    starts, ends = view.phases.span_start[chain.spans], view.phases.span_end[chain.spans]
    rows = scene.advice_rows
    is_other = np.isin(view.categories.category[rows], (Category.PARAMETERS, Category.WORKSPACE))
    rows = rows[(allocations.born[rows] > chain.begins) & ~is_other & ~view.names.placed[rows]]
    step = np.searchsorted(ends, allocations.born[rows], side="right")
    under_way = rows[step == len(ends)]
    rows, step = rows[step < len(ends)], step[step < len(ends)]
    sizes = allocations.requested_bytes[rows]
    size_bytes = int(sizes.sum())
    is_computed = allocations.born[rows] < starts[step]
    computed = np.bincount(step[is_computed], weights=sizes[is_computed], minlength=len(ends))
    steps = int((computed > _LEAST_COMPUTED * size_bytes / len(ends)).sum())
    if chain.counts_next:
        # The same calls once more, after the last derivative, are the next step's.
        is_next = np.isin(allocations.stack[under_way], allocations.stack[rows[is_computed]])
        repeated = steps + bool(is_next.any())
    else:
        repeated = steps
    if repeated < chain.fewest or size_bytes < _LEAST_SHARE * scene.advice_heap.requested_bytes:
        return
    is_given_up = given_up_since(scene, chain.begins) > _MOST_GIVEN_UP * size_bytes
    if is_given_up and not chain.frees_its_graphs:
        return
    saved_bytes = size_bytes - int(np.bincount(step, weights=sizes).max())
    evidence = [chain.evidence]
    takes_signs = scene.is_in_source(_SIGNS)
    if takes_signs:
        evidence.append("what is used of them are signs, and sign() passes no gradient on")
    yield Finding(
        id="retained_graph",
        verdict=Verdict.LIKELY if takes_signs else chain.verdict,
        title=f"{scene.part_of_heap(size_bytes)} are graphs of {steps} steps that asked"
        f" torch.autograd.grad for a derivative: {chain.keeper}",
        bytes=saved_bytes,
        place=view.place_of_block(_last_largest(rows[is_computed], sizes[is_computed])),
        evidence=tuple(evidence),
        fix=f"{chain.unless}, {chain.remedy} (about {format_size(saved_bytes)} less)",
        extent=scene.extent(rows),
    )


def _last_largest(rows: NDArray[np.int64], sizes: NDArray[np.int64]) -> int:
    """Of the largest allocations the last: the first may be what all steps begin with."""
    return int(rows[np.flatnonzero(sizes == sizes.max())[-1]])


def _chain(scene: Scene) -> _Chain | None:
    """The derivatives since the last backward pass or optimizer step; None where as many are usual, or
    training has yet to show how many.
    """
    begins, spans, cuts = _derivatives_since_training(scene)
    weight_sizes = _weight_sizes(scene)
    is_by_weights = [_asks_for(scene, span, weight_sizes) for span in spans.tolist()]
    if len(_tasks(scene, spans)) > _FEWEST_TASKS and all(is_by_weights):
        return _of_tasks(spans, begins)
    if len(cuts) and _evaluates_since(scene, begins):
        if not _keep_their_graphs(scene, spans):
            return _without_own_graphs(spans, begins)
        return _by_input(spans, begins, may_be_meant=False)
    if len(cuts):
        return _beyond_usual(scene, spans, cuts)
    may_be_training = may_train(scene.view)
    if len(weight_sizes) and not any(is_by_weights):
        if not may_be_training and not _keep_their_graphs(scene, spans):
            return _without_own_graphs(spans, begins)
        return _by_input(spans, begins, may_be_meant=may_be_training)
    if may_be_training:
        return None
    if len(weight_sizes):
        return _Chain(spans, _FEWEST, begins)
    if not _keep_their_graphs(scene, spans):
        return _without_own_graphs(spans, begins)
    return _by_input(spans, begins, may_be_meant=False, fewest=_FEWEST_WITHOUT_WEIGHTS)


def _by_input(
    spans: NDArray[np.int64], begins: int, *, may_be_meant: bool, fewest: int = _FEWEST_BY_INPUT
) -> _Chain:
    """Derivatives by what a model is asked about: a sampler, an attack, a simulation.

    Args:
        may_be_meant: whether a first step of training may be to go through all of them.
        fewest: from how many on they are too many to be meant.
    """
    return _Chain(
        spans,
        fewest,
        begins,
        counts_next=True,
        verdict=Verdict.POSSIBLE if may_be_meant else Verdict.LIKELY,
        keeper="create_graph=True has each step keep its graph, and the next builds on it",
        unless="unless one backward pass is to go through all these steps",
        remedy="call this with create_graph=False (create_graph=self.training, and model.eval()"
        " before, where training makes a loss of the same derivative), and detach what goes from"
        " one step to the next (positions, forces, energies: x = x.detach()): a sampler, an"
        " attack, a rendering or a simulation needs only the numbers",
    )


def _without_own_graphs(spans: NDArray[np.int64], begins: int) -> _Chain:
    """Derivatives whose graphs are gone: the state that is computed from them goes on with its graph."""
    return _Chain(
        spans,
        _FEWEST_BY_INPUT,
        begins,
        counts_next=True,
        keeper="the state that each is computed for keeps the graph of the step before",
        remedy="detach the state before the next step (x = x.detach(); a derivative by x then"
        " needs x.requires_grad_()): an iteration of a solver, a reconstruction or a sampler needs"
        " only the numbers",
        evidence="what is computed of a derivative and of the state before has that state's graph",
        frees_its_graphs=True,
    )


def _of_training_mode(spans: NDArray[np.int64], begins: int) -> _Chain:
    """Derivatives after training, with graphs that they have in training mode alone."""
    return _Chain(
        spans,
        _FEWEST_BY_INPUT,
        begins,
        counts_next=True,
        keeper="create_graph is on while the model is in training mode, and the next step builds"
        " on it",
        remedy="call model.eval() before these steps: then each step's graph goes with its"
        " derivative",
    )


def _keep_their_graphs(scene: Scene, spans: NDArray[np.int64]) -> bool:
    """Whether something that was made in it is alive of most derivatives, but for the last."""
    starts, ends = scene.view.phases.span_start[spans], scene.view.phases.span_end[spans]
    born = scene.device.allocations.born[scene.advice_rows]
    is_kept = [
        bool(((born >= start) & (born < end)).any())
        for start, end in zip(starts[:-1].tolist(), ends[:-1].tolist(), strict=True)
    ]
    return 2 * sum(is_kept) > len(is_kept)


def _of_tasks(spans: NDArray[np.int64], begins: int) -> _Chain:
    """Inner steps of meta-learning, several tasks of them."""
    return _Chain(
        spans,
        _FEWEST_TASKS,
        begins,
        keeper="inner steps of several tasks, whose losses wait for one backward pass",
        unless="if the tasks' losses are added up",
        remedy="call backward() on each task's loss, divided by their number, as soon as it is"
        " there, and step after the last: the gradients are the same, and each task's graph goes"
        " with the task",
    )


def _beyond_usual(scene: Scene, spans: NDArray[np.int64], cuts: NDArray[np.int64]) -> _Chain | None:
    """More derivatives than any backward pass so far went through."""
    starts, begins = scene.view.phases.span_start, int(cuts.max())
    derivatives = np.flatnonzero(_is_derivative(scene))
    before = derivatives[starts[derivatives] < begins]
    usual = np.bincount(np.searchsorted(cuts, starts[before]), minlength=1).max()
    if usual and len(spans) > _TIMES_BY_MODE * usual and scene.is_in_source(_BY_MODE):
        return _of_training_mode(spans, begins)
    if len(spans) <= _TIMES_THE_USUAL * usual:
        return None
    if not usual:
        return _Chain(spans, _FEWEST, begins)
    return _Chain(
        spans,
        _FEWEST_BEYOND_TRAINING,
        begins,
        keeper="something keeps them all, a running sum or a state that goes from one step to the"
        " next",
        remedy="leave create_graph=True out where only the result is used (an adaptation that is"
        " tested, an evaluation), add up numbers (total += error.item()), and detach a state"
        " before the next step (x = x.detach()): then each step's graph goes with the step",
    )


def _evaluates_since(scene: Scene, event: int) -> bool:
    """Whether all modules that ran with gradients since an event did so in eval mode (a backward pass, whose
    requests have no stack, runs none). One that has no parameters and did not run before says nothing.
    """
    modules, allocations = scene.view.modules, scene.device.allocations
    stacks = scene.trace.stacks
    is_called = modules.marked & stacks.through(stacks.user_frames, allocations.stack)
    is_since = is_called & (allocations.born > event)
    with_gradients = is_since & ~modules.without_grad
    earlier = np.unique(modules.module[is_called & ~is_since])
    says = np.union1d(earlier, _with_parameters(scene))
    telling = with_gradients & np.isin(modules.module, says)
    telling = telling if telling.any() else with_gradients
    return bool(telling.any() and modules.eval_with_grad[telling].all())


def _with_parameters(scene: Scene) -> NDArray[np.int64]:
    """The modules that have parameters, themselves or in their parts, by number."""
    names, paths = scene.view.names, scene.view.modules.paths
    parameters = [names.name(row) for row in names.of_kind(TensorKind.PARAMETER).tolist()]
    owners = {name[:end] for name in parameters for end in _ends_of_modules(name)}
    return np.array([number for number, path in enumerate(paths) if path in owners], np.int64)


def _ends_of_modules(name: str) -> list[int]:
    """Where the paths of the modules end that a parameter's name begins with."""
    return [match.start() for match in re.finditer(r"\.", name)]


def _is_derivative(scene: Scene) -> NDArray[np.bool_]:
    """One flag a backward pass: whether the program asked for a derivative.

    ``backward()`` asks for the gradient of its loss, 1; ``autograd.grad`` may be given it, and then no stack
    shows the call: where other passes show theirs, one without is taken for a derivative.
    """
    view = scene.view
    is_backward = spans_with(view, BACKWARD_FRAME)
    is_shown = bool(is_backward.any()) | spans_with(view, DERIVATIVE_FRAME)
    return np.asarray(~is_backward & is_shown)


def derivatives_after(scene: Scene, event: int) -> int:
    """The number of derivatives since an event, and since training."""
    _, spans, _ = _derivatives_since_training(scene)
    return int((scene.view.phases.span_start[spans] > event).sum())


def _derivatives_since_training(
    scene: Scene,
) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """The event of the last backward pass or optimizer step, -1 without one; the derivatives since that
    are complete, as numbers of backward passes; and the events of all such passes and steps.
    """
    view, allocations = scene.view, scene.device.allocations
    starts, ends = view.phases.span_start, view.phases.span_end
    of_optimizer = allocations.born[view.phases.phase == Phase.OPTIMIZER]
    cuts = np.sort(np.concatenate([starts[spans_with(view, BACKWARD_FRAME)], of_optimizer]))
    cuts = cuts[cuts < scene.advice_event]
    begins = int(cuts.max(initial=-1))
    is_since = _is_derivative(scene) & (starts > begins) & (ends < scene.advice_event)
    return begins, np.flatnonzero(is_since), cuts


def _weight_sizes(scene: Scene) -> NDArray[np.int64]:
    """The different sizes of the parameters; none where the recording does not name them."""
    parameters = scene.view.names.of_kind(TensorKind.PARAMETER)
    return np.unique(scene.device.allocations.requested_bytes[parameters])


def _asks_for(scene: Scene, span: int, weight_sizes: NDArray[np.int64]) -> bool:
    """Whether a derivative asked for gradients of weights: most of their sizes are among what it made."""
    view, allocations = scene.view, scene.device.allocations
    start, end = view.phases.span_start[span], view.phases.span_end[span]
    first, last = np.searchsorted(allocations.born, (start, end + 1)).tolist()
    is_made = np.isin(weight_sizes, allocations.requested_bytes[first:last])
    return len(weight_sizes) > 0 and bool(2 * is_made.sum() > len(weight_sizes))


def _tasks(scene: Scene, spans: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The derivatives, apart where more was computed between two than between others; none where
    that is not as often.
    """
    starts, ends = scene.view.phases.span_start[spans], scene.view.phases.span_end[spans]
    pauses = starts[1:] - ends[:-1]
    if not len(pauses):
        return []
    tasks = np.split(spans, np.flatnonzero(pauses > _LONGER * pauses.min()) + 1)
    lengths = {len(task) for task in tasks[:-1]}
    return tasks if len(lengths) == 1 and len(tasks[-1]) <= len(tasks[0]) else []


def given_up_since(scene: Scene, event: int) -> int:
    """The activations that backward passes since an event gave back: where they left the rest for
    passes of their own (a pipeline's micro-batches in flight), about as much.
    """
    view, allocations = scene.view, scene.device.allocations
    freed = allocations.free_requested
    is_given_up = (freed > event) & (freed < scene.advice_event)
    is_given_up &= view.categories.category == Category.ACTIVATIONS
    rows = np.flatnonzero(is_given_up)
    span = view.phases.span_at(freed[rows])
    rows, span = rows[span >= 0], span[span >= 0]
    is_older = allocations.born[rows] < view.phases.span_start[span]
    return scene.bytes_of(rows[is_older])
