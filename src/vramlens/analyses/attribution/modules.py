"""Modules: which part of the model each allocation belongs to, from module marks and from the
names of tensors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.names import Names
from vramlens.trace import NO_TEXT, DeviceTrace, TensorKind, TensorNames, Trace

_EVAL_WITH_GRAD, _WITHOUT_GRAD = " [eval+grad]", " [no grad]"
"""End the mark of what a model in eval mode asked for while gradients were enabled, or any model while
they were disabled (capture/names/module_marks.py).
"""
WITHOUT_GRAPH = re.compile(r"torch[/\\](?:autograd[/\\]function|utils[/\\]checkpoint)\.py:")
"""What runs inside of these keeps no graph, although a backward pass may be to come."""

OUTSIDE = -1


@dataclass(frozen=True, eq=False)
class Modules:
    """One row an allocation.

    Attributes:
        module: a number into ``paths``; OUTSIDE where no module was running and no name tells one.
        marked: whether a mark says so; else it is the tensor's name that does.
        eval_with_grad: made by a model in eval mode while gradients were enabled.
        without_grad: made by a model while gradients were disabled; false where nothing tells.
        paths: ``model.blocks.3.attn``.
    """

    module: NDArray[np.int64]
    marked: NDArray[np.bool_]
    eval_with_grad: NDArray[np.bool_]
    without_grad: NDArray[np.bool_]
    paths: tuple[str, ...]

    @cached_property
    def trains(self) -> NDArray[np.bool_]:
        """Whether a backward pass may follow what a model computed: it is not in eval mode, and gradients
        are enabled.
        """
        return np.asarray(self.marked & ~self.eval_with_grad & ~self.without_grad)

    @cached_property
    def root(self) -> NDArray[np.int64]:
        """The model that each is of, a number by the first name of its path; OUTSIDE as ``module``."""
        numbers: dict[str, int] = {}
        names = (path.partition(".")[0] for path in self.paths)
        by_module = [numbers.setdefault(name, len(numbers)) for name in names]
        return np.array([*by_module, OUTSIDE], np.int64)[self.module]


def modules_of(trace: Trace, device: DeviceTrace, names: Names) -> Modules:
    """The module of every allocation of a device: the one that was running, else the one that
    its name says.
    """
    count = len(device.allocations)
    number: dict[str, int] = {}
    module = np.broadcast_to(np.int64(OUTSIDE), count)
    marked = evaluates = without_grad = np.zeros(count, np.bool_)
    if trace.meta.module_marks:
        module, evaluates, without_grad = _from_marks(trace, device, number)
        rows = np.flatnonzero(without_grad)
        without_grad[rows] = ~trace.stacks.within(WITHOUT_GRAPH, device.allocations.stack[rows])
        marked = module >= 0
    module = _from_names(names, module, number)
    return Modules(module, marked, evaluates, without_grad, tuple(number))


def _from_marks(
    trace: Trace, device: DeviceTrace, number: dict[str, int]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """By allocation its module's number, whether that ran in eval mode with gradients enabled, and
    whether gradients were disabled.
    """
    born = device.allocations.born
    recorded = born >= 0
    text = np.full(len(born), NO_TEXT, np.uint32)
    text[recorded] = device.events.user_metadata[born[recorded]]
    texts, text_of_row = np.unique(text, return_inverse=True)
    modules = np.full(len(texts), OUTSIDE, np.int64)
    evaluates, without_grad = np.zeros((2, len(texts)), np.bool_)
    for i, text_id in enumerate(texts.tolist()):
        mark = trace.stacks.strings[text_id]
        path = mark.removesuffix(_EVAL_WITH_GRAD).removesuffix(_WITHOUT_GRAD)
        if path:
            modules[i] = number.setdefault(path, len(number))
            evaluates[i] = mark.endswith(_EVAL_WITH_GRAD)
            without_grad[i] = mark.endswith(_WITHOUT_GRAD)
    text_of_row = text_of_row.reshape(-1)
    return modules[text_of_row], evaluates[text_of_row], without_grad[text_of_row]


def _from_names(
    names: Names, module: NDArray[np.int64], number: dict[str, int]
) -> NDArray[np.int64]:
    """Completes the modules by the names of tensors: a parameter belongs to the module that
    holds it.
    """
    table = names.tensors
    modules = _named_modules(table)
    module_of_row = np.array(module)
    for row in np.flatnonzero(names.named & (module < 0)).tolist():
        path = _holder(names.name(row), TensorKind(int(table.kind[names.row[row]])), modules)
        if path:
            module_of_row[row] = number.setdefault(path, len(number))
    return module_of_row


# How vramlens writes names (capture/names/tensor_names.py): grad[PARAMETER],
# optimizer.exp_avg[PARAMETER], PARAMETER (all-gathered), MODULE.(flat parameter of 12), PARAMETER
# and 3 more, MODULE.cache['k'].
_ABOUT = re.compile(r"[^\[\]]*\[(.*)\]", re.DOTALL)
_MORE = re.compile(r" and [0-9]+ more$", re.ASCII)
_REMARK = re.compile(r"[\[( ]")
_FLAT = ".(flat parameter"


def _named_modules(table: TensorNames) -> frozenset[str]:
    """The paths of all modules that hold a parameter or a buffer, and of those around them."""
    paths: set[str] = set()
    for row in np.flatnonzero(
        np.isin(table.kind, (TensorKind.PARAMETER, TensorKind.BUFFER))
    ).tolist():
        name = table.name[row]
        if "[" in name:  # in an optimizer's list, of no module
            continue
        path = (
            name.split(_FLAT, 1)[0] if _FLAT in name else name.split(" ", 1)[0].rpartition(".")[0]
        )
        while path and path not in paths:
            paths.add(path)
            path = path.rpartition(".")[0]
    return frozenset(paths)


def _holder(name: str, kind: TensorKind, modules: frozenset[str]) -> str:
    """The module that a named tensor belongs to; "" where it belongs to none."""
    about = (
        _ABOUT.fullmatch(name)
        if kind in (TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE)
        else None
    )
    text = about[1] if about else name
    path = _REMARK.split(text, maxsplit=1)[0].rstrip(".")
    while path and path not in modules:
        path = path.rpartition(".")[0]
    # One storage of several parameters is theirs together: the model's.
    return path.split(".", 1)[0] if _MORE.search(text) else path
