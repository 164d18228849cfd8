"""Gradients of a few samples, taken one after the other to be compared: what each is, and how
far two are apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.recovery.losses.loss_calls import LossCalls, watched
from vramlens.recovery.losses.loss_form import PlainValues
from vramlens.recovery.losses.loss_graph import Top, terms_of, top_of
from vramlens.recovery.losses.part_losses import CountFunction, LossFunction, empty, loss_of
from vramlens.recovery.training.rollback import host_copy, on_host

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_LOOKED_AT = (
    65_536  # numbers of each gradient, evenly spread: enough to tell, and small on the host
)
_FLOOR = 1e-4  # of the largest gradient: below, a gradient is zero but for rounding, as a bias before a softmax has
_NOISY_FLOOR = (
    1e-2  # the same for a gradient that rounding alone moves by more than TOO_NOISY, as in 16 bits
)
_MISSED = 0.1  # of the gradient of the whole
TOO_NOISY = 0.05


@dataclass(slots=True)
class CheckedTraining:
    """The training whose split is checked.

    Attributes:
        model: what ``loss_fn`` is given; a compiled model's original, so that dropout can be turned
            off.
        clean: frees what is cached, after a failure.
        scale: what a gradient scaler multiplies losses by: without it gradients of 16 bits vanish.
        compares_whole: compare the loss of the whole batch, too, without gradients. Not where ranks
            share a model: one that has no room would leave the others waiting.
        part_size: samples of the parts that the batch is to be split into, where that is known.
        values: what the loss function reads of its program; None: it is not looked at.
    """

    model: Any
    parameters: Sequence[tuple[str, torch.nn.Parameter]]
    loss_fn: LossFunction
    count_fn: CountFunction | None
    devices: Sequence[torch.device]
    clean: Callable[[], None]
    scale: float = 1.0
    compares_whole: bool = True
    values: PlainValues | None = None
    part_size: int | None = None


@dataclass(slots=True)
class GradientRun:
    """One forward and backward: the loss, its count if it gave one, and numbers of each parameter's
    gradient.

    Attributes:
        top: by what the loss is divided, as its graph tells; None: it does not.
    """

    loss: float
    count: float | None
    gradients: list[torch.Tensor | None]
    dtypes: set[str]
    top: Top | None = None


def gradients_of(
    training: CheckedTraining, batch: Any, calls: LossCalls, factor: float
) -> GradientRun:
    """One forward and backward; parts of each gradient, on the host, in double precision.

    Args:
        factor: multiplies the loss in the backward, and is taken out again.
    """
    parameters = [parameter for _, parameter in training.parameters]
    forget(parameters)
    with watched(calls):
        loss = loss_of(training.loss_fn(training.model, batch))
        mean = loss.mean
        top = top_of(terms_of(loss.value))
        factor *= training.scale
        (mean if factor == 1.0 else mean * factor).backward()  # type: ignore[no-untyped-call]
    gradients = [
        None if parameter.grad is None else _numbers_of(parameter.grad, factor)
        for parameter in parameters
    ]
    dtypes = {str(parameter.grad.dtype) for parameter in parameters if parameter.grad is not None}
    forget(parameters)
    count = None if loss.count is None else float(loss.count)
    return GradientRun(
        loss=float(mean.detach()), count=count, gradients=gradients, dtypes=dtypes, top=top
    )


def _numbers_of(gradient: Any, factor: float) -> torch.Tensor:
    """Some of a gradient's numbers, on the host, without the factor of the loss."""
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    if local.layout is not torch.strided:
        local = local.to_dense()
    flat = local.detach().reshape(-1)
    numbers = host_copy(flat[:: -(-flat.numel() // _LOOKED_AT) or 1], torch.float64)
    with on_host():
        return numbers if factor == 1.0 else numbers / factor


def forget(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Sets gradients to None."""
    for parameter in parameters:
        parameter.grad = None


def unusable(run: GradientRun) -> str:
    """Why nothing can be compared with a run; empty where it can."""
    if not math.isfinite(run.loss):
        return f"the loss is {run.loss}, so nothing can be compared"
    gradients = [gradient for gradient in run.gradients if gradient is not None]
    if not gradients:
        return "no parameter has a gradient"
    if not all(bool(gradient.isfinite().all()) for gradient in gradients):
        return "gradients are not finite, so nothing can be compared"
    if not any(bool(gradient.any()) for gradient in gradients):
        return "all gradients of these samples are zero, so nothing can be compared"
    return ""


def weighs(part: GradientRun, whole: GradientRun) -> bool:
    """Whether a part has a finite gradient that could be missed in that of the whole."""
    with on_host():
        ours, theirs = (
            math.sqrt(
                sum(
                    float(gradient.square().sum())
                    for gradient in run.gradients
                    if gradient is not None
                )
            )
            for run in (part, whole)
        )
    return math.isfinite(ours) and ours > _MISSED * theirs


def weighted_sum(
    gradients: Sequence[torch.Tensor | None], shares: Sequence[float]
) -> torch.Tensor | None:
    """The gradients of parts together; None where no part has one. Parts without a share have no
    say.
    """
    none = empty(list(shares))
    with on_host():
        parts = zip(gradients, shares, none, strict=True)
        weighted = [
            gradient * share
            for gradient, share, nothing in parts
            if gradient is not None and not nothing
        ]
        return torch.stack(weighted).sum(0) if weighted else None


def floors_of(
    rounded: Sequence[torch.Tensor | None], plain: Sequence[torch.Tensor | None]
) -> list[float]:
    """Below which norm each gradient is nothing but rounding."""
    with on_host():
        norms = [0.0 if gradient is None else float(gradient.norm()) for gradient in plain]
        largest = max(norms, default=0.0)
        floors = []
        for a, b, norm in zip(rounded, plain, norms, strict=True):
            moved = float((a - b).norm()) if a is not None and b is not None else 0.0
            noisy = moved > TOO_NOISY * norm and norm + moved < _NOISY_FLOOR * largest
            floors.append((_NOISY_FLOOR if noisy else _FLOOR) * largest)
        return floors


def furthest(
    ours: Sequence[torch.Tensor | None],
    theirs: Sequence[torch.Tensor | None],
    training: CheckedTraining,
    floors: Sequence[float] | None = None,
) -> tuple[float, str]:
    """The largest norm of a difference over the norm of the gradient, and the parameter that has
    it.
    """
    if floors is None:
        floors = floors_of(ours, theirs)
    with on_host():
        worst, where = 0.0, ""
        for (name, _), a, b, floor in zip(training.parameters, ours, theirs, floors, strict=True):
            present = a if a is not None else b
            if present is None:
                continue
            first = a if a is not None else torch.zeros_like(present)
            second = b if b is not None else torch.zeros_like(present)
            difference = float((first - second).norm()) / max(float(second.norm()), floor, 1e-300)
            difference = math.inf if math.isnan(difference) else difference
            if difference > worst or not where:
                worst, where = difference, name
        return worst, where
