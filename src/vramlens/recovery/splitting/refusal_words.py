"""Why a batch is not split, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramlens.recovery.memory_errors import failure_of, let_go
from vramlens.recovery.splitting.batch_parts import Samples

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

IS_NORMALISED = "is normalized separately"
RANDOM = (
    "the model or the loss uses its own random numbers, so parts cannot repeat those of the "
    "whole batch"
)
_OTHER_MEAN = (
    "is a mean over something other than samples (tokens that are not ignored, class weights): "
    "return (sum, count) or pass count_fn"
)
BY_CLASS = (
    "cross_entropy uses class weights, so its mean is over the weights of the labels, which "
    "were not found in the batch: return (sum, count), or pass count_fn=lambda batch: "
    "weight[labels].sum()"
)


def why_unequal(model: Any, counted: bool) -> str:
    """Why the gradient of parts is not that of the whole, as far as that can be told."""
    norms = _norms(model)
    if norms:
        return norms
    return (
        "the loss of one sample depends on the others (a contrastive loss, statistics over the"
        f" batch){_or(counted)}"
    )


def _or(counted: bool) -> str:
    return ", or it is divided by a different count" if counted else f", or {_OTHER_MEAN}"


def means_over(counted: bool) -> str:
    """Why a few samples agree, and the whole batch does not."""
    if counted:
        return (
            "the loss is divided by a different count, or the loss of one sample depends on "
            "the others"
        )
    return f"the loss {_OTHER_MEAN}"


def fails_on(model: Any, samples: Samples, few: int, count: int, error: Exception) -> str:
    """Why a loss function that fails on a few samples does not allow a split."""
    text = f"loss_fn fails on {few} of {count} samples: {failure_of(error).text[:200]}"
    let_go(error)
    if undivided := samples.undivided:
        text += f" ({undivided} has 1 along dimension 0, so each part gets all of it)"
    return and_norms(model, text)


def and_norms(model: Any, text: str) -> str:
    """A reason, after the one that would hold without it."""
    norms = _norms(model)
    return f"{norms}; besides, {text}" if norms else text


def iterating_norm(model: Any) -> str:
    """The name of the first spectral norm that learns; empty where there is none."""
    for name, module in model.named_modules():
        hooks = [type(hook).__name__ for hook in module._forward_pre_hooks.values()]
        if module.training and (
            type(module).__name__ == "_SpectralNorm" or "SpectralNorm" in hooks
        ):
            return name or "itself"
    return ""


def _norms(model: Any) -> str:
    """The first of the norms over the batch, in words; empty where there is none."""
    norms = [
        f"{type(module).__name__} {name or 'itself'}"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
        and (module.training or module.running_mean is None)
    ]
    if not norms:
        return ""
    first = (
        f"{norms[0]} normalises"
        if len(norms) == 1
        else f"{norms[0]} and {len(norms) - 1} more normalise"
    )
    return f"{first} over the batch, so each part {IS_NORMALISED}"
