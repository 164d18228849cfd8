"""Categories: what each allocation is for, judged by who asked, when, how long it lived and how
large it is.

A snapshot names no tensors. What is certain is said as proven (memory that an optimizer asked for
and kept), what follows from lifetimes as likely, what rests on sizes alone as possible. A recording
that vramlens made names those that were alive at its end, which settles them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.modules import OUTSIDE, Modules
from vramlens.analyses.attribution.names import Names
from vramlens.analyses.attribution.phases import Phase, Phases
from vramlens.analyses.attribution.steps import PATTERN, Steps
from vramlens.analyses.attribution.training import Training
from vramlens.trace import NO_STACK, DeviceTrace, Stacks, TensorKind, Trace


class Category(IntEnum):
    """What memory is for."""

    OTHER = 0
    PARAMETERS = 1
    GRADIENTS = 2
    OPTIMIZER_STATE = 3
    ACTIVATIONS = 4
    TEMPORARIES = 5
    WORKSPACE = 6


class Certainty(IntEnum):
    """How sure a category is, the surest first; its name in lower case is the verdict."""

    PROVEN = 0
    LIKELY = 1
    POSSIBLE = 2


COMPUTED = (Category.ACTIVATIONS, Category.TEMPORARIES, Category.OTHER)
"""What a module computes: of a pass that did not end nobody knows what a backward
pass would have used."""
_PARAMETER_FRAME = re.compile(
    r"torch[/\\]nn[/\\]modules[/\\]module\.py:(?:_apply|cuda|to|to_empty|half|bfloat16|float|convert|<lambda>)$"
    r"|torch[/\\]nn[/\\]modules[/\\][^:]+:(?:__init__|reset_parameters)$"
    r"|torch[/\\]nn[/\\](?:parameter|init)\.py:"
    r"|torch[/\\]distributed[/\\](?:fsdp|_composable|tensor)[/\\]"
)
_LOADING_FRAME = re.compile(
    r"torch[/\\](?:serialization|_utils|storage)\.py:|[/\\]safetensors[/\\]|torch[/\\]distributed[/\\]checkpoint[/\\]"
)
_DEEP_COPY_FRAME = re.compile(r"(?:^|[/\\])copy\.py:(?:_?deepcopy\w*|_reconstruct)$")
_REDUCER_FRAME = re.compile(
    r"torch[/\\]nn[/\\]parallel[/\\]distributed\.py:(?:_pre_forward|__init__|_ddp_init_helper)$"
)
_CONVOLUTION_FRAME = re.compile(
    r"torch[/\\](?:nn[/\\]modules[/\\]conv\.py:_conv_forward|backends[/\\]cudnn)"
)

# Kept per handle and stream once the first matrix product has run
# (aten/src/ATen/cuda/CublasHandlePool.cpp: parseChosenWorkspaceSize and its cuBLASLt twin): 32 MiB
# on Hopper and newer, 8,519,680 bytes before, 1 MiB and 32 MiB for cuBLASLt, 76 MiB for hipBLASLt.
_BLAS_WORKSPACES = (8_519_680, 33_554_432, 1_048_576, 79_691_776)


@dataclass(frozen=True, eq=False)
class Categories:
    """One row an allocation: a Category and how certain it is (a Certainty)."""

    category: NDArray[np.uint8]
    certainty: NDArray[np.uint8]


_OF_KIND = {
    TensorKind.PARAMETER: Category.PARAMETERS,
    TensorKind.BUFFER: Category.PARAMETERS,
    TensorKind.GRADIENT: Category.GRADIENTS,
    TensorKind.OPTIMIZER_STATE: Category.OPTIMIZER_STATE,
}
"""A module's buffers live and move with its parameters; other tensors may be anything."""


def categories_of(
    trace: Trace,
    device: DeviceTrace,
    steps: Steps,
    phases: Phases,
    names: Names,
    training: Training,
    modules: Modules,
) -> Categories:
    """What every allocation of a device is for."""
    judge = _Judge(trace=trace, device=device, steps=steps, phases=phases, names=names)
    judge.temporaries_and_activations()
    judge.kept_by_passes_without_gradients(modules)
    if training == Training.ABSENT:
        judge.kept_without_a_graph()
    else:
        judge.stored_data(modules)
        judge.kept_without_a_model(training, modules)
        judge.gradients()
    judge.optimizer_state()
    judge.parameters()
    judge.loaded(training)
    judge.workspaces()
    judge.older_than_the_recording()
    judge.named()
    return Categories(judge.category, judge.certainty)


class _Judge:
    """Settles one category after the other; a later one may overrule an earlier one."""

    def __init__(
        self, trace: Trace, device: DeviceTrace, steps: Steps, phases: Phases, names: Names
    ) -> None:
        self.device, self.steps, self.phases, self.names = device, steps, phases, names
        self.allocations = device.allocations
        self.events = len(device.events)
        count = len(self.allocations)
        self.category = np.full(count, Category.OTHER, np.uint8)
        self.certainty = np.full(count, Certainty.POSSIBLE, np.uint8)
        self.end = self.allocations.free_requested
        self.born_step = steps.of(self.allocations.born)
        self.end_step = np.where(self.end >= self.events, len(steps) + 1, steps.of(self.end))
        self._stacks = trace.stacks
        self._has_stack = self.allocations.stack != NO_STACK

    def _settle(
        self, rows: NDArray[np.bool_] | NDArray[np.int64], category: Category, certainty: Certainty
    ) -> None:
        self.category[rows] = category
        self.certainty[rows] = certainty

    def _framed(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        return self._stacks.within(pattern, self.allocations.stack)

    def temporaries_and_activations(self) -> None:
        """What the forward pass asks for and a later pass gives up is an activation; the rest is
        temporary.
        """
        phases = self.phases
        looped = np.isin(
            phases.phase, (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.EVALUATION)
        )
        self._settle(looped, Category.TEMPORARIES, Certainty.LIKELY)
        # A forward pass is over when the next allocation is none of its own: kept beyond that means
        # kept for later.
        forward = np.isin(phases.phase, (Phase.FORWARD, Phase.EVALUATION))
        is_outside_forward = (self.allocations.born >= 0) & ~forward
        born_outside = self.allocations.born[is_outside_forward]
        over = np.append(born_outside, self.events)[np.cumsum(is_outside_forward)]
        ended = self.end < self.events
        outlives_its_step = (self.end_step > self.born_step) & (
            self.born_step < len(self.steps) - 1
        )
        is_activation = forward & ended & (self.end >= over) | forward & outlives_its_step
        in_time = forward & ended & ~is_activation
        # Still alive at the end of the recording: judged by what became of its like.
        stack = self.allocations.stack
        if self._has_stack.any():
            kept_before = np.bincount(
                stack[self._has_stack & is_activation], minlength=len(self._stacks)
            )
            gone_before = np.bincount(stack[self._has_stack & in_time], minlength=len(self._stacks))
            open_ = forward & ~ended & ~is_activation & self._has_stack
            is_activation[open_] = (kept_before >= gone_before)[stack[open_]]
        self._settle(is_activation, Category.ACTIVATIONS, Certainty.LIKELY)

    def kept_by_passes_without_gradients(self, modules: Modules) -> None:
        """No backward pass needs what was computed while gradients were disabled."""
        is_kept = modules.without_grad & (self.category == Category.ACTIVATIONS)
        self._settle(is_kept, Category.OTHER, Certainty.PROVEN)

    def kept_without_a_graph(self) -> None:
        """What passes without a backward pass keep is the program's own: caches, results."""
        is_kept = self.category == Category.ACTIVATIONS
        self._settle(is_kept, Category.OTHER, Certainty.LIKELY)

    def stored_data(self, modules: Modules) -> None:
        """What lasts beyond its step and the next, and no module computed or only an evaluation, is
        kept by the program: a replay buffer, a cache of batches, outputs of an epoch. A variable
        lasts until the next step sets it again.
        """
        if self.steps.source == PATTERN or not modules.marked.any():
            return  # what repeats may be less than a step
        is_computed = modules.marked & (modules.module != OUTSIDE)
        lasts = np.minimum(self.end_step, len(self.steps) - 1) > self.born_step + 1
        is_graph = is_computed & (modules.eval_with_grad | (self.phases.phase == Phase.FORWARD))
        is_stored = lasts & ~is_graph & (self.category == Category.ACTIVATIONS)
        self._settle(is_stored, Category.OTHER, Certainty.LIKELY)

    def kept_without_a_model(self, training: Training, modules: Modules) -> None:
        """What a list or dict of the program keeps where no model runs and no backward pass was seen, as in a
        simulation, is the program's own.
        """
        if training == Training.SEEN or modules.marked.any() or not self.names.tensors:
            return
        rows = np.flatnonzero(self.names.of_program & (self.category == Category.ACTIVATIONS))
        is_entry = ["[" in self.names.name(row) for row in rows.tolist()]
        self._settle(rows[np.array(is_entry, np.bool_)], Category.OTHER, Certainty.LIKELY)

    def gradients(self) -> None:
        """What a backward pass asks for and leaves behind, of a size that parameters have."""
        phases, inside = self.phases, self.phases.span >= 0
        if not inside.any():
            return
        outlasting = np.zeros(len(inside), np.bool_)
        outlasting[inside] = self.end[inside] > phases.span_last[phases.span[inside]]
        beyond = np.zeros(len(inside), np.bool_)
        beyond[inside] = self.end[inside] >= phases.span_end[phases.span[inside]]
        sized = np.isin(self.allocations.requested_bytes, self._long_lived_sizes())
        self._settle(outlasting & sized, Category.GRADIENTS, Certainty.LIKELY)
        self._settle(
            beyond & ~sized & ~(phases.frame >= 0) & inside, Category.GRADIENTS, Certainty.POSSIBLE
        )
        self._settle(beyond & ~sized & phases.inferred, Category.GRADIENTS, Certainty.POSSIBLE)
        self._settle(self._framed(_REDUCER_FRAME), Category.GRADIENTS, Certainty.LIKELY)

    def _long_lived_sizes(self) -> NDArray[np.int64]:
        """Sizes of what outlives its step without belonging to a pass: parameters, and what has
        their shape.
        """
        is_model_building = np.isin(
            self.phases.phase, (Phase.OTHER, Phase.OPTIMIZER, Phase.UNKNOWN)
        )
        lasting = is_model_building & (self.end_step > self.born_step)
        if not len(self.steps):
            lasting = is_model_building
        lasting &= ~self._named_otherwise()
        lasting[self.names.of_kind(TensorKind.PARAMETER)] = True
        return np.unique(self.allocations.requested_bytes[lasting])

    def optimizer_state(self) -> None:
        """What an optimizer asks for and does not give back within its step."""
        optimizer = self.phases.phase == Phase.OPTIMIZER
        is_kept = optimizer & (self.end_step > self.born_step)
        self._settle(is_kept, Category.OPTIMIZER_STATE, Certainty.PROVEN)

    def parameters(self) -> None:
        """What modules asked for outside the loop, and kept."""
        outside = self.phases.phase == Phase.OTHER
        by_frame = outside & self._framed(_PARAMETER_FRAME)
        self._settle(by_frame, Category.PARAMETERS, Certainty.LIKELY)
        counterparts = np.isin(self.category, (Category.GRADIENTS, Category.OPTIMIZER_STATE))
        twin = np.isin(
            self.allocations.requested_bytes,
            np.unique(self.allocations.requested_bytes[counterparts]),
        )
        self._settle(by_frame & twin, Category.PARAMETERS, Certainty.PROVEN)
        lasting = outside & (self.end_step > self.born_step + 1) & (self.allocations.born >= 0)
        is_alike = lasting & ~by_frame & twin & ~self._named_otherwise()
        self._settle(is_alike, Category.PARAMETERS, Certainty.LIKELY)

    def _named_otherwise(self) -> NDArray[np.bool_]:
        """What was there when parameters were named, and is none of them: before a first backward
        pass ends, activations and their gradients look like parameters and theirs.
        """
        parameters = self.names.of_kind(TensorKind.PARAMETER)
        is_there = self.end >= self.events
        is_there &= bool(len(parameters))
        is_there[self.names.of_kind(*_OF_KIND)] = False
        return is_there

    def loaded(self, training: Training) -> None:
        """A checkpoint's tensors: of each size, as many as the model has are its weights; the rest
        optimizer state.

        ``load_state_dict`` copies weights into the model, but an optimizer goes on with the very
        tensors it is given (its step counters too). A model without weights of its own took over
        what was loaded.
        """
        loaded = np.flatnonzero(
            loading_rows(self._stacks, self.allocations.stack) & (self.phases.phase == Phase.OTHER)
        )
        owned = self.category == Category.PARAMETERS
        owned[loaded] = False
        sizes = self.allocations.requested_bytes
        if not owned.any():
            self._settle(loaded, Category.PARAMETERS, Certainty.POSSIBLE)
            return
        first, _ = _rank(sizes[loaded], *np.unique(sizes[owned], return_counts=True))
        self._settle(loaded[first], Category.OTHER, Certainty.POSSIBLE)
        if training != Training.ABSENT:
            self._settle(loaded[~first], Category.OPTIMIZER_STATE, Certainty.POSSIBLE)

    def workspaces(self) -> None:
        """cuBLAS's work buffers, which stay; and cuDNN's, which are gone before the next
        request.
        """
        looped = np.isin(self.phases.phase, (Phase.FORWARD, Phase.BACKWARD, Phase.EVALUATION))
        stays = looped & (self.end_step > self.born_step + 1)
        blas = stays & np.isin(self.allocations.requested_bytes, _BLAS_WORKSPACES)
        # One a handle and stream, not one a step: what recurs has another purpose.
        keys = self.allocations.stack.astype(np.int64) * 7 + self.allocations.requested_bytes
        kinds, kind_of_key, times = np.unique(keys[blas], return_inverse=True, return_counts=True)
        once = np.zeros(len(blas), np.bool_)
        once[np.flatnonzero(blas)] = (times <= 2)[kind_of_key] if len(kinds) else False
        self._settle(once, Category.WORKSPACE, Certainty.LIKELY)
        convolution = (
            looped & self._framed(_CONVOLUTION_FRAME) & (self.category == Category.TEMPORARIES)
        )
        brief = self.end <= self.allocations.born + 3
        self._settle(convolution & brief, Category.WORKSPACE, Certainty.LIKELY)

    def older_than_the_recording(self) -> None:
        """Of each size that gradients have: the first of the old blocks as parameters, the rest
        as optimizer state.
        """
        sizes = self.allocations.requested_bytes
        old = np.flatnonzero((self.allocations.born < 0) & (self.category == Category.OTHER))
        self._settle(
            old[np.isin(sizes[old], _BLAS_WORKSPACES)], Category.WORKSPACE, Certainty.POSSIBLE
        )
        gradients = np.flatnonzero(self.category == Category.GRADIENTS)
        if not len(old) or not len(gradients):
            return
        first_step = gradients[self.born_step[gradients] == self.born_step[gradients].min()]
        first, counted = _rank(sizes[old], *np.unique(sizes[first_step], return_counts=True))
        self._settle(old[first], Category.PARAMETERS, Certainty.POSSIBLE)
        self._settle(old[counted & ~first], Category.OPTIMIZER_STATE, Certainty.POSSIBLE)

    def named(self) -> None:
        """What a tensor's name says; and gradients of earlier steps, which were asked for as the
        named ones were.
        """
        for kind, category in _OF_KIND.items():
            self._settle(self.names.of_kind(kind), category, Certainty.PROVEN)
        named = self.names.of_kind(TensorKind.GRADIENT)
        if not len(named):
            return
        stack, size = self.allocations.stack.astype(np.int64), self.allocations.requested_bytes
        alike = np.isin(size, np.unique(size[named])) & np.isin(stack, np.unique(stack[named]))
        alike &= ~self.names.named & (self.end < self.events) & (self.allocations.born >= 0)
        rows = np.flatnonzero(alike)
        pairs = set(zip(stack[named].tolist(), size[named].tolist(), strict=True))
        rows = rows[
            [pair in pairs for pair in zip(stack[rows].tolist(), size[rows].tolist(), strict=True)]
        ]
        # Autograd's threads leave no stack: of theirs, those that outlived their backward pass.
        span = self.phases.span[rows]
        outlived = np.zeros(len(rows), np.bool_)
        outlived[span >= 0] = self.end[rows[span >= 0]] > self.phases.span_last[span[span >= 0]]
        self._settle(
            rows[outlived | self._has_stack[rows] & (span < 0)],
            Category.GRADIENTS,
            Certainty.LIKELY,
        )


def loading_rows(stacks: Stacks, stack: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Which allocations a checkpoint's loading asked for."""
    return stacks.within(_LOADING_FRAME, stack)


def deep_copy_rows(stacks: Stacks, stack: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Which allocations ``copy.deepcopy`` asked for: it clones a tensor's storage where loading makes them."""
    return stacks.within(_DEEP_COPY_FRAME, stack)


def _rank(
    held: NDArray[np.int64], sizes: NDArray[np.int64], wanted: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which of some sizes are among the first ``wanted`` of their size, and which have a size
    that is wanted at all.
    """
    place = np.minimum(np.searchsorted(sizes, held), max(len(sizes) - 1, 0))
    counted = sizes[place] == held if len(sizes) else np.zeros(len(held), np.bool_)
    order = np.argsort(held, kind="stable")
    ordered = held[order]
    rank = np.empty(len(held), np.int64)
    rank[order] = np.arange(len(held)) - np.searchsorted(ordered, ordered)
    first = counted.copy()
    first[counted] = rank[counted] < wanted[place[counted]]
    return first, counted
