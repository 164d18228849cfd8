"""The linear top of a loss: by what its mean is divided, read from the graph that autograd made
of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from vramlens.capture.process.graph_depths import GraphDepths, sequence_of
from vramlens.recovery.training.rollback import on_host

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_MOST_TERMS = 32
_MOST_NODES = 200_000
_MEANS_OF_TOTAL_WEIGHT = ("NllLossBackward0", "NllLoss2DBackward0")
_MEANS_OF_ELEMENTS = (
    "MseLossBackward0",
    "SmoothL1LossBackward0",
    "HuberLossBackward0",
    "BinaryCrossEntropyWithLogitsBackward0",
    "BinaryCrossEntropyBackward0",
    "KlDivBackward0",
)
_LOSSES = _MEANS_OF_TOTAL_WEIGHT + _MEANS_OF_ELEMENTS
_LINEAR = (
    "AliasBackward0",
    "CloneBackward0",
    "ExpandBackward0",
    "MaskedFillBackward0",
    "NegBackward0",
    "ReshapeAliasBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "ToCopyBackward0",
    "UnsafeViewBackward0",
    "UnsqueezeBackward0",
    "ViewBackward0",
)
_NO_REDUCTION, _MEAN = 0, 1  # torch/nn/_reduction.py
_UNSIGNED = 1 << 64  # saved dimensions are unsigned: -1 comes as 2**64 - 1


@dataclass(slots=True)
class Term:
    """One summand of a loss: ``product(factors)`` times a sum over the elements of a tensor.

    Attributes:
        path: the operations from the loss down to where the loss is no longer linear.
        factors: numbers, or tensors with one element (on the GPU, not yet waited for), each with
            its power: 1, or -1 where it divides.
        operand_sizes: elements of each tensor that the elements are multiplied by, or divided by.
        is_reduced: whether a sum or mean lies on the path.
    """

    path: list[str] = field(default_factory=list)
    factors: list[tuple[Any, int]] = field(default_factory=list)
    operand_sizes: list[int] = field(default_factory=list)
    is_reduced: bool = False

    def branch(self) -> Term:
        """A copy, for one of several summands."""
        return Term(list(self.path), list(self.factors), list(self.operand_sizes), self.is_reduced)


@dataclass(frozen=True, slots=True)
class Top:
    """The summands of a loss in numbers: for each its operations, its coefficient and the sizes
    of its operands.
    """

    paths: tuple[tuple[str, ...], ...]
    coefficients: tuple[float, ...]
    operand_sizes: tuple[tuple[int, ...], ...]


def top_of(terms: Sequence[Term] | None) -> Top | None:
    """The same in numbers; None where there is nothing to read. Waits for the GPU."""
    if terms is None:
        return None
    with on_host():
        coefficients = tuple(numbers_of(terms))
    return Top(
        tuple(tuple(term.path) for term in terms),
        coefficients,
        tuple(tuple(term.operand_sizes) for term in terms),
    )


class NotLinear(Exception):
    """A loss whose top cannot be read."""


def terms_of(loss: torch.Tensor) -> list[Term] | None:
    """The summands of a loss; None where its top is not one that can be read.

    Must be called before the backward, which frees what the nodes have saved.
    """
    terms: list[Term] = []
    try:
        with on_host():  # saved numbers do not pass through modes of the program
            _descend(loss.grad_fn, Term(), terms)
    except (NotLinear, RuntimeError, AttributeError, TypeError):
        return None
    return terms or None


def operations_of(loss: torch.Tensor) -> frozenset[str]:
    """The names of all differentiable operations that a loss came from, but those in the depths of a
    very deep graph.

    The newest come first: what holds a node was made after it, so that its depth is known.
    """
    names: set[str] = set()
    visited: set[Any] = set()
    depths = GraphDepths(torch)
    waiting = [] if loss.grad_fn is None else [_entry(loss.grad_fn)]
    while waiting and len(visited) < _MOST_NODES:
        *_, node = heappop(waiting)
        if node in visited:
            continue
        visited.add(node)
        names.add(node.name())
        depth = depths.depth_of(node)
        for below, _ in node.next_functions if depths.has_room(depth) else ():
            if below is not None:
                depths.is_below(below, depth + 1)
                heappush(waiting, _entry(below))
    return frozenset(names)


def _entry(node: Any) -> tuple[int, int, Any]:
    """A node that waits: the newest first, each once."""
    return -(sequence_of(node) or 0), id(node), node


def numbers_of(terms: Sequence[Term]) -> list[float]:
    """The coefficient of each term: waits for the GPU, once."""
    fetched = _numbers_on_device([factor for term in terms for factor, _ in term.factors])
    numbers = []
    for term in terms:
        coefficient = 1.0
        for factor, power in term.factors:
            number = next(fetched) if isinstance(factor, torch.Tensor) else float(factor)
            coefficient = coefficient * number if power > 0 else _over(coefficient, number)
        numbers.append(coefficient)
    return numbers


def _numbers_on_device(factors: Sequence[Any]) -> Iterator[float]:
    """The numbers of those factors that are tensors, fetched together."""
    on_device = [factor for factor in factors if isinstance(factor, torch.Tensor)]
    if not on_device:
        return iter(())
    device = on_device[0].device
    scalars = [factor.detach().reshape(()).to(device, torch.float64) for factor in on_device]
    return iter(torch.stack(scalars).tolist())


def _over(number: float, divisor: float) -> float:
    return number / divisor if divisor else math.nan


def _descend(node: Any, term: Term, terms: list[Term]) -> None:
    """Follows a term down the graph; adds it to ``terms`` where it ends."""
    while True:
        if node is None or len(terms) >= _MOST_TERMS:
            raise NotLinear
        name = node.name()
        below = [function for function, _ in node.next_functions]
        if name in ("AddBackward0", "SubBackward0"):
            _branches(node, name, below, term, terms)
            return
        followed = _followed(node, name, below, term)
        if not followed:
            break
        node = followed[0]
    if not term.is_reduced:
        raise NotLinear
    terms.append(term)


def _branches(node: Any, name: str, below: list[Any], term: Term, terms: list[Term]) -> None:
    alpha = float(getattr(node, "_saved_alpha", 1))
    for index, function in enumerate(below):
        if function is None:
            continue
        summand = term.branch()
        summand.path.append(f"{name}[{index}]")
        if index == 1 and alpha != 1.0:
            summand.factors.append((alpha, 1))
        _descend(function, summand, terms)


def _followed(node: Any, name: str, below: list[Any], term: Term) -> list[Any]:
    """The node that a term goes on to; empty where it ends."""
    if name in ("MulBackward0", "DivBackward0"):
        return _through_product(node, name, below, term)
    if name in _LINEAR:
        term.path.append(name)
    elif name in ("MulBackward1", "DivBackward1"):  # by a Python number
        term.path.append(name[:3])
        term.factors.append((node._saved_other, -1 if name == "DivBackward1" else 1))
    elif not _through_reduction(node, name, term) or name in _LOSSES:
        return []
    return below[:1]


def _through_product(node: Any, name: str, below: list[Any], term: Term) -> list[Any]:
    """The factor that is differentiated; empty where the loss stops being linear here."""
    constants = [index for index, function in enumerate(below) if function is None]
    if len(constants) != 1:
        return []
    if name == "DivBackward0" and constants[0] == 0:  # a constant divided by the loss
        return []
    saved = "other" if constants[0] == 1 else "self"
    constant = _saved(node, saved)
    term.path.append(name[:3])
    if constant.dim():  # one sample alone has one element, too
        term.operand_sizes.append(constant.numel())
    else:
        term.factors.append((constant, -1 if name == "DivBackward0" else 1))
    return [below[1 - constants[0]]]


def _through_reduction(node: Any, name: str, term: Term) -> bool:
    """Notes a sum or a mean; False where the node is something else: the term ends above it."""
    if name == "SumBackward0":
        term.is_reduced = True
    elif name == "MeanBackward0":
        term.factors.append((node._saved_self_sym_numel, -1))
        term.is_reduced = True
    elif name in ("SumBackward1", "MeanBackward1"):
        if name == "MeanBackward1":
            term.factors.append((_mean_size(node), -1))
        term.is_reduced = True
    elif name in _LOSSES:
        if node._saved_reduction == _NO_REDUCTION:
            return False
        if node._saved_reduction == _MEAN:
            total = name in _MEANS_OF_TOTAL_WEIGHT
            count = _saved(node, "total_weight") if total else _saved(node, "self").numel()
            term.factors.append((count, -1))
        term.is_reduced = True
    else:
        return False
    term.path.append(name)
    return True


def _mean_size(node: Any) -> int:
    """Over how many elements each element of a mean over some dimensions is taken."""
    sizes = node._saved_self_sym_sizes
    dims = [
        dim - _UNSIGNED if dim >= _UNSIGNED // 2 else dim
        for dim in node._saved_dim or range(len(sizes))
    ]
    return math.prod(sizes[dim] for dim in dims)


def _saved(node: Any, name: str) -> Any:
    """What a node has saved, unless a hook (checkpointing, offload) would have to bring it back
    first.
    """
    raw = getattr(node, f"_raw_saved_{name}")
    if raw is None:
        return getattr(node, f"_saved_{name}")
    if raw.unpack_hook is not None:
        raise NotLinear
    return getattr(node, f"_saved_{name}")
