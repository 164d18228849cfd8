"""Cross entropy in chunks: the same loss and gradient without a second and third copy of the
logits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_ROWS = 1024
_FEWEST_ROWS = 64
_made: list[Any] = []


def chunked_cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, ignore_index: int = -100, reduction: str = "mean"
) -> torch.Tensor:
    """The mean (or sum) of the cross entropy of (rows, classes) logits, computed a thousand rows at
    a time.

    PyTorch keeps the logarithm of the softmax, as large as the logits, and makes the gradient
    beside it; here the
    gradient is made at once in the forward: one copy is live in place of two. It is right for one
        backward.
    """
    if not _made:
        _made.append(_function())
    loss: torch.Tensor = _made[0].apply(logits, target, ignore_index, reduction == "mean")
    return loss


@contextlib.contextmanager
def in_chunks(calls: list[str] | None = None) -> Iterator[None]:
    """Has ``torch.nn.functional.cross_entropy`` (and ``nn.CrossEntropyLoss``) work in chunks where
    it can.

    Args:
        calls: gets a word for each call that did.
    """
    functional: Any = torch.nn.functional
    plain = functional.cross_entropy

    def cross_entropy(logits: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        options = dict(kwargs)
        ignored, reduction = options.pop("ignore_index", -100), options.pop("reduction", "mean")
        simple = not args and reduction in ("mean", "sum") and _are_defaults(options)
        if (
            not simple
            or logits.dim() != 2
            or target.is_floating_point()
            or not logits.requires_grad
        ):
            return plain(logits, target, *args, **kwargs)
        if calls is not None:
            calls.append(reduction)
        return chunked_cross_entropy(logits, target, ignored, reduction)

    functional.cross_entropy = cross_entropy
    try:
        yield
    finally:
        functional.cross_entropy = plain


def _are_defaults(given: dict[str, Any]) -> bool:
    """Whether no other argument says anything: neither class weights nor label smoothing."""
    return all(
        option is None or (isinstance(option, float) and not option) for option in given.values()
    )


def _function() -> Any:
    class ChunkedCrossEntropy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Any, target: Any, ignore_index: int, mean: bool) -> Any:
            gradient = torch.empty_like(logits)
            total = torch.zeros(
                (),
                dtype=torch.float32 if logits.dtype.itemsize < 4 else logits.dtype,
                device=logits.device,
            )
            is_counted = target != ignore_index
            count = is_counted.sum().clamp(min=1) if mean else torch.ones_like(total)
            step = max(_FEWEST_ROWS, min(_ROWS, len(logits) // 8))
            for start in range(0, len(logits), step):
                rows = logits[start : start + step].to(total.dtype)
                keep = is_counted[start : start + step]
                goal = torch.where(keep, target[start : start + step], 0).unsqueeze(1)
                normal = rows.logsumexp(1, keepdim=True)
                total += ((normal - rows.gather(1, goal)).squeeze(1) * keep).sum()
                share = torch.exp(rows - normal)
                share.scatter_add_(1, goal, torch.full_like(normal, -1.0))
                gradient[start : start + step] = share.mul_(keep.unsqueeze(1) / count)
            ctx.save_for_backward(gradient)
            return total / count

        @staticmethod
        def backward(ctx: Any, arriving: Any) -> Any:
            (gradient,) = ctx.saved_tensors
            return gradient.mul_(arriving), None, None, None

    return ChunkedCrossEntropy
