"""Training: whether a recording shows any, told once for all that speak of it.

What a backward pass will use, gradients and optimizer state exist in training alone. A server, a
search or a solver without autograd keeps memory, too; nothing about that is training.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.modules import WITHOUT_GRAPH, Modules
from vramlens.analyses.attribution.names import Names
from vramlens.analyses.attribution.phases import Phases, optimizer_texts
from vramlens.trace import DeviceTrace, ParameterUse, TensorKind, Trace

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution

DERIVATIVE_FRAME = re.compile(r"torch[/\\]autograd[/\\]__init__\.py:grad$")
BACKWARD_FRAME = re.compile(r"torch[/\\](?:_tensor|autograd[/\\]__init__)\.py:backward$")
_FEWEST_PASSES = 3
_FEWEST_REQUESTS = 8
"""Fewer are not a pass through a model."""
_ENOUGH_REQUESTS = 32
"""Of the pass under way: fewer do not show what it keeps."""
LEAST_KEPT_SHARE = 0.25
"""Of a pass's requests: a graph keeps a third at least (with checkpoints), most of them as a rule;
without one, 5 to 17% are kept as results and caches (shared recordings, H100 and H200).
"""


class Training(Enum):
    """Whether a recording shows training."""

    SEEN = "seen"
    ABSENT = "absent"
    UNKNOWN = "unknown"


def training_of(
    trace: Trace, device: DeviceTrace, phases: Phases, names: Names, modules: Modules
) -> Training:
    """What this device's recording shows: training or none; UNKNOWN before a first backward pass."""
    if optimizer_works(trace, phases) or _makes_gradients(trace, names):
        return Training.SEEN
    if len(phases.span_start):
        return Training.ABSENT if _has_no_model(trace, names, modules) else Training.SEEN
    is_absent = _runs_without_grad(modules) or _passes_keep_no_graph(trace, device, modules)
    return Training.ABSENT if is_absent else Training.UNKNOWN


def pass_starts(modules: Modules, marked: NDArray[np.int64]) -> NDArray[np.int64]:
    """The allocation that each forward pass begins with, among marked ones: where its first module
    runs again.
    """
    if not len(marked):
        return marked
    is_first = modules.module[marked] == modules.module[marked[0]]
    return np.asarray(marked[is_first & np.append(True, ~is_first[:-1])])


def turns_with(begins: NDArray[np.int64], births: NDArray[np.int64]) -> int:
    """In or after how many different turns, of those that begin at some events, some births were; 0 without turns."""
    return len(np.unique(np.searchsorted(begins, births, "right"))) if len(begins) else 0


def optimizer_works(trace: Trace, phases: Phases) -> bool:
    """Whether an optimizer worked in the recording."""
    return phases.optimizer_ran or bool(optimizer_texts(trace))


def may_train(view: Attribution) -> bool:
    """Whether the program has an optimizer, as far as is known."""
    if not view.names.tensors or optimizer_works(view.trace, view.phases):
        return True
    return bool((view.names.tensors.use == ParameterUse.STEPPED).any())


def _makes_gradients(trace: Trace, names: Names) -> bool:
    if len(names.of_kind(TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE)):
        return True
    return bool(trace.stacks.mark_frames(BACKWARD_FRAME).any())


def _runs_without_grad(modules: Modules) -> bool:
    """Whether modules ran, and all of them while gradients were disabled."""
    return bool(modules.marked.any()) and bool(modules.without_grad[modules.marked].all())


def _has_no_model(trace: Trace, names: Names, modules: Modules) -> bool:
    """Whether modules are marked and named, and there are none: then a backward pass is that of a
    function's derivative (torch.func, autograd.grad).
    """
    if not trace.meta.module_marks or modules.marked.any():
        return False
    return not len(names.of_kind(TensorKind.PARAMETER))


def _passes_keep_no_graph(trace: Trace, device: DeviceTrace, modules: Modules) -> bool:
    """Whether several whole forward passes kept no graph, and the one under way keeps none."""
    inside_functions = trace.stacks.within(WITHOUT_GRAPH, device.allocations.stack)
    rows = np.flatnonzero(modules.marked & ~inside_functions)
    starts = pass_starts(modules, np.flatnonzero(modules.marked))
    passes = np.split(rows, np.searchsorted(rows, starts[1:]))
    passes = [pass_rows for pass_rows in passes if len(pass_rows) >= _FEWEST_REQUESTS]
    if len(passes) <= _FEWEST_PASSES:
        return False
    whole_passes, last_pass = passes[:-1], passes[-1]
    if len(last_pass) >= _ENOUGH_REQUESTS:
        whole_passes.append(last_pass)
    return all(kept_share(device, pass_rows) < LEAST_KEPT_SHARE for pass_rows in whole_passes)


def kept_share(device: DeviceTrace, pass_rows: NDArray[np.int64]) -> float:
    """Of a pass's requests: how many are still alive at its last one."""
    allocations = device.allocations
    is_kept = allocations.free_requested[pass_rows] >= allocations.born[pass_rows[-1]]
    return float(is_kept.mean())


def spans_with(view: Attribution, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """One flag a backward pass: whether a request in it goes through such a frame."""
    rows = np.flatnonzero(view.phases.span >= 0)
    rows = rows[view.trace.stacks.within(pattern, view.device.allocations.stack[rows])]
    flags = np.zeros(len(view.phases.span_start), np.bool_)
    flags[view.phases.span[rows]] = True
    return flags
