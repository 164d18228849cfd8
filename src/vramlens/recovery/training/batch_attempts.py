"""An attempt: a batch run forward and backward, whole or in parts, with the gradient of the
whole.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vramlens.errors import UsageError
from vramlens.recovery.losses.loss_graph import Term, operations_of, terms_of
from vramlens.recovery.losses.part_losses import Loss, LossFunction, Weights, empty, loss_of
from vramlens.recovery.splitting.batch_parts import BatchSamples, SplitFunction

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch


@dataclass(slots=True)
class PartsSeen:
    """What the parts of a batch did: by what their losses are divided, and what they were
    multiplied by.

    Attributes:
        tops: of each part's loss the summands, as its graph tells; None where it does not.
        shares: what each part's loss was multiplied by (with ``(sum, count)`` the same for all).
        losses: what each part gave (a mean, or a sum), without a graph.
        operations: all differentiable operations of the first part.
    """

    tops: list[list[Term] | None] = field(default_factory=list)
    shares: list[Any] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)
    operations: frozenset[str] = frozenset()

    @property
    def empty(self) -> list[bool]:
        """Which parts have a loss of zero, as parts without a label have: is their divisor none,
        too?
        """
        return (torch.stack(self.losses) == 0).tolist() if self.losses else []

    def note(self, loss: torch.Tensor, share: Any) -> None:
        """Looks at a part's loss before its backward."""
        if not self.tops:
            self.operations = operations_of(loss)
        self.tops.append(terms_of(loss))
        self.shares.append(share)
        self.losses.append(loss.detach().clone())


@dataclass(slots=True)
class Call:
    """A batch that was given to the guard.

    Attributes:
        scale: what its loss is multiplied by.
        samples: found when it first has to be split.
        size: samples a part had in the latest attempt; None: it was whole.
        parts_seen: what its parts did in the latest attempt; None: it was whole.
        form: what the proof of its split holds for.
        doubts: how often what its parts did was not a proof.
        number: its own.
        refusal: why this batch must not be split; empty: nothing is known against it.
    """

    batch: Any
    loss_fn: LossFunction
    scale: float = 1.0
    samples: BatchSamples | None = None
    size: int | None = None
    parts_seen: PartsSeen | None = None
    form: Any = None
    refusal: str = ""
    doubts: int = 0
    number: int = field(default_factory=itertools.count().__next__)

    def split(self, function: SplitFunction | None) -> BatchSamples:
        """Its samples.

        Raises:
            CannotSplit: the text names the leaf.
        """
        if self.samples is None:
            self.samples = BatchSamples(self.batch, function)
        return self.samples


@dataclass(slots=True)
class Runner:
    """Runs calls.

    Attributes:
        model: what loss functions are given.
        scaler: a ``torch.amp.GradScaler`` or None.
        around: a context for each forward (offload).
        forwards: how many times a loss function was called.
    """

    model: Any
    parameters: Sequence[torch.nn.Parameter]
    scaler: Any
    around: Callable[[], contextlib.AbstractContextManager[None]] | None = None
    forwards: int = 0
    phase: str = "forward"

    def whole(self, call: Call) -> torch.Tensor:
        """The loss of a batch, its gradient added to what is there."""
        loss: torch.Tensor = self._forward(call, call.batch).mean
        self._backward(loss if call.scale == 1.0 else loss * call.scale)
        return loss.detach()

    def split(self, call: Call, bounds: list[tuple[int, int]], weights: Weights) -> torch.Tensor:
        """The same in parts: losses that are means are weighted, sums are divided by the count
        of the whole.
        """
        assert call.samples is not None
        call.parts_seen = PartsSeen()
        parts = [call.samples.part(start, stop) for start, stop in bounds]
        sizes = [stop - start for start, stop in bounds]
        with _steady_running_statistics(self.model, len(parts)):
            self.phase = "forward"
            first = self._forward(call, parts[0])
            if first.count is not None:
                return self._summed(call, parts, first, sum(sizes) / sizes[0])
            shares, dtype = weights.of(parts, sizes), first.value.dtype
            nothing = empty(shares) if weights.count is not None else [False] * len(parts)
            total: Any = 0.0
            if not nothing[0]:
                call.parts_seen.note(first.value, shares[0])
                total = first.value.detach() * shares[0]
                self._backward(first.value * (shares[0] * call.scale))
            del first
            for part, share, none in zip(parts[1:], shares[1:], nothing[1:], strict=True):
                if none:
                    continue
                loss = self._forward(call, part)
                if loss.count is not None:
                    raise UsageError(
                        "loss_fn gave a mean for one part and (sum, count) for another: always "
                        "return the same kind"
                    )
                call.parts_seen.note(loss.value, share)
                total = total + loss.value.detach() * share
                self._backward(loss.value * (share * call.scale))
                del loss
        loss_of_whole: torch.Tensor = total.to(dtype)
        return loss_of_whole

    def _summed(self, call: Call, parts: list[Any], first: Any, ratio: float) -> torch.Tensor:
        """Sums with counts: how many there are in all is known only at the end, so gradients are
        set right then.
        """
        guess = _positive(first.count * ratio)
        # Gradients of earlier batches are not to be touched.
        earlier = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        parts_seen = call.parts_seen
        assert parts_seen is not None
        parts_seen.note(first.value, 1.0)
        total, count = first.value.detach().clone(), first.count
        self._backward(first.value * (call.scale / guess))
        del first
        for part in parts[1:]:
            loss = self._forward(call, part)
            if loss.count is None:
                raise UsageError(
                    "loss_fn gave (sum, count) for one part and a mean for another: always "
                    "return the same kind"
                )
            parts_seen.note(loss.value, 1.0)
            total, count = total + loss.value.detach(), count + loss.count
            self._backward(loss.value * (call.scale / guess))
            del loss
        factor = guess / count
        with torch.no_grad():
            for parameter, before in zip(self.parameters, earlier, strict=True):
                if parameter.grad is None:
                    parameter.grad = before
                    continue
                parameter.grad.mul_(factor)
                if before is not None:
                    parameter.grad.add_(before)
        mean: torch.Tensor = (total / count).to(total.dtype)
        return mean

    def _forward(self, call: Call, batch: Any) -> Loss:
        self.phase = "forward"
        self.forwards += 1
        with self.around() if self.around is not None else contextlib.nullcontext():
            return loss_of(call.loss_fn(self.model, batch))

    def _backward(self, loss: Any) -> None:
        self.phase = "backward"
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()


def _positive(count: Any) -> Any:
    """A count, or 1 in place of none."""
    if isinstance(count, torch.Tensor):
        return torch.where(count > 0, count, torch.ones_like(count))
    return count or 1.0


@contextlib.contextmanager
def _steady_running_statistics(model: Any, parts: int) -> Iterator[None]:
    """Has ``parts`` updates of running statistics weigh as much as one, and count as one.

    With momentum m, one update keeps 1 - m of what was; k updates with 1 - (1 - m)^(1/k) keep as
    much in all.
    """
    norms = _norms_with_momentum(model)
    momenta = [norm.momentum for norm in norms]
    counted = [norm for norm in norms if norm.num_batches_tracked is not None]
    before = [norm.num_batches_tracked.clone() for norm in counted]
    if parts > 1:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = 1 - (1 - momentum) ** (1 / parts)
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    for norm, count in zip(counted, before, strict=True):
        norm.num_batches_tracked.copy_(count + 1)


def _norms_with_momentum(model: Any) -> list[Any]:
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return [
        module
        for module in modules
        if isinstance(module, torch.nn.modules.batchnorm._NormBase)
        and module.training
        and module.momentum is not None
    ]
