"""Losses of parts: what the user's function gives, and the weight of each part in the loss of
the whole.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.errors import UsageError
from vramlens.recovery.losses.loss_calls import LossCalls
from vramlens.recovery.splitting.batch_parts import leaves_of

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

LossFunction = Callable[[Any, Any], Any]
"""The user's: (model, batch) -> a mean loss, or (sum of the losses, how many there are)."""
CountFunction = Callable[[Any], Any]
"""The user's: batch -> over how many items its loss is a mean: tokens that are not ignored, for
example.
"""


@dataclass(frozen=True, slots=True)
class Loss:
    """What the user's function gave: the sum and the count, or a mean and None."""

    value: torch.Tensor
    count: Any

    @property
    def mean(self) -> torch.Tensor:
        """The loss as one mean."""
        return self.value if self.count is None else (self.value / self.count).to(self.value.dtype)


def loss_of(result: Any) -> Loss:
    """The user's result, checked.

    Raises:
        UsageError: it is neither a scalar tensor nor (sum, count).
    """
    if isinstance(result, (tuple, list)) and len(result) == 2:
        loss, count = result[0], _checked_count(result[1])
    else:
        loss, count = result, None
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise UsageError(f"loss_fn returned {_why_no_loss(loss)}")
    return Loss(loss.reshape(()), count)


def _checked_count(count: Any) -> Any:
    if isinstance(count, torch.Tensor) and count.numel() == 1:
        return exact(count.detach().reshape(()))
    if isinstance(count, (int, float)) and not isinstance(count, bool):
        return count
    raise UsageError(
        "loss_fn returned a pair whose second value is not a count: return (sum of the "
        "losses, how many)"
    )


def _why_no_loss(loss: Any) -> str:
    if isinstance(loss, dict):
        hint = "return its ['loss']" if "loss" in loss else "return their sum"
        return f"{type(loss).__name__}: {hint}"
    is_tensor = isinstance(loss, torch.Tensor)
    shape = f"a tensor of shape {list(loss.shape)}" if is_tensor else type(loss).__name__
    return f"{shape}: return a mean loss (a scalar tensor), or (sum, count)"


def misfit(loss_fn: Any) -> str:
    """Why a function cannot be called as ``loss_fn(model, batch)``; "" where it can, or does not
    tell.
    """
    try:
        inspect.signature(loss_fn).bind(None, None)
    except ValueError:  # a builtin may have no signature
        return ""
    except TypeError as error:
        return f"loss_fn is called as loss_fn(model, batch), which does not work here: {error}"
    return ""


@dataclass(frozen=True, slots=True)
class Weights:
    """By what the parts of a batch count.

    Attributes:
        name: how a person would say it.
        count: gives the count of a batch or part; None: its samples.
        path: of the labels whose ignored items do not count; empty where it is not about labels.
        add_up: whether the losses of parts are the loss of the whole as they are: a sum, or divided
            by a number that does not change with the part.
    """

    name: str
    count: CountFunction | None = None
    path: str = ""
    add_up: bool = False

    def of(self, parts: list[Any], sizes: list[int]) -> list[Any]:
        """What the loss of each part is multiplied by: its share, together 1; or 1 each, where
        losses add up.
        """
        if self.add_up:
            return [1.0] * len(parts)
        counts: list[Any] = list(sizes if self.count is None else map(self.count, parts))
        if any(isinstance(count, torch.Tensor) for count in counts):
            counts = list(map(exact, counts))
            total: Any = sum(counts[1:], counts[0])
            return [count / total for count in counts]
        total = math.fsum(counts)
        if not total > 0:
            return [0.0 if total == 0 else math.nan] * len(counts)
        return [count / total for count in counts]


def empty(shares: list[Any]) -> list[bool]:
    """Which parts have no share: a mean over nothing is not a number, and must not be asked for.

    All False where the whole has none either: then that is its loss. Waits for the GPU if the
        counts are there.
    """
    if any(isinstance(share, torch.Tensor) for share in shares):
        none = (torch.stack([torch.as_tensor(share) for share in shares]) == 0).tolist()
    else:
        none = [share == 0 for share in shares]
    return [False] * len(none) if all(none) else none


BY_SAMPLES = Weights("samples")
ADDED_UP = Weights("sum", add_up=True)


def exact(count: Any) -> Any:
    """A count in double precision, so that shares of it are as exact as the loss."""
    if isinstance(count, torch.Tensor) and count.device.type != "mps":  # which has no doubles
        return count.to(torch.float64)
    return count


def candidates(batch: Any, calls: LossCalls) -> list[Weights]:
    """What a loss may be: a mean over samples or over integer labels that are not ignored, or a
    sum.

    Where a cross entropy was given class weights, its mean is over the weights of the labels, and
    nothing else is
    tried: samples that happen to have one label would not tell the difference.
    """
    if calls.class_weights is not None:
        return list(_by_class(batch, calls.class_weights, calls.ignored))
    weights = [BY_SAMPLES]
    for ignored in sorted(calls.ignored):
        for path, leaf in _labels_of(batch, ignored):
            for shift, cut in _shifts(leaf):
                name = f"items of {path}{cut} that are not {ignored}"
                weights.append(Weights(name, _counter(path, shift, ignored), path))
    return [*weights, ADDED_UP]


def _shifts(labels: torch.Tensor) -> list[tuple[int, str]]:
    """By how much labels may be shifted, in words too: language models shift them by one."""
    has_next = labels.dim() > 1 and labels.shape[-1] > 1
    return [(0, ""), (1, "[..., 1:]")] if has_next else [(0, "")]


def _labels_of(batch: Any, ignored: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The leaves that are labels of which some are ignored."""
    for path, leaf in leaves_of(batch):
        if leaf.dtype is torch.int64 and leaf.dim() and bool((leaf == ignored).any()):
            yield path, leaf


def _by_class(batch: Any, class_weights: torch.Tensor, ignored: set[int]) -> Iterator[Weights]:
    """Means over the weights of labels: of each leaf that may be labels of so many classes."""
    for path, leaf in leaves_of(batch):
        if not _may_be_labels(leaf, len(class_weights), ignored):
            continue
        for shift, cut in _shifts(leaf):
            name = f"class weights of {path}{cut}"
            yield Weights(name, _class_counter(path, shift, class_weights, ignored), path)


def _may_be_labels(leaf: torch.Tensor, classes: int, ignored: set[int]) -> bool:
    if leaf.dtype is not torch.int64 or not leaf.dim() or not leaf.numel():
        return False
    labels = leaf[_kept(leaf, ignored)]
    return not labels.numel() or (int(labels.min()) >= 0 and int(labels.max()) < classes)


def _kept(labels: torch.Tensor, ignored: set[int]) -> torch.Tensor:
    is_counted = torch.ones_like(labels, dtype=torch.bool)
    for label in ignored:
        is_counted &= labels != label
    return is_counted


def _leaf(batch: Any, path: str) -> torch.Tensor:
    return next(leaf for name, leaf in leaves_of(batch) if name == path)


def _counter(path: str, shift: int, ignored: int) -> CountFunction:
    def count(batch: Any) -> Any:
        return (_leaf(batch, path)[..., shift:] != ignored).sum()

    return count


def _class_counter(
    path: str, shift: int, class_weights: torch.Tensor, ignored: set[int]
) -> CountFunction:
    def count(batch: Any) -> Any:
        labels = _leaf(batch, path)[..., shift:]
        counted_labels = labels[_kept(labels, ignored)]
        return exact(class_weights.to(labels.device)[counted_labels]).sum()

    return count
