"""Random numbers: the host's go on as in a run, whatever has no values here; the card's are drawn from
a sequence of their own.

A program draws its lengths, sizes and order of samples after its weights. On a card the weights'
numbers come from the same sequence where they were made on the host
(aten/src/ATen/native/cpu/DistributionTemplates.h draws them one after the other, and 16 again
where they do not come in sixteens).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vramlens.prediction.tensors.operator_schema import Operator, tensors_in

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_AT_ONCE = 1 << 22


def skip_draws(operator: Operator, args: Any, kwargs: Any) -> None:
    """Draws the numbers of a tensor on the host that has a shape only, and forgets them."""
    tensors = tensors_in(args, kwargs)
    if tensors[1:] or not (tensors or isinstance(args[0], (list, tuple))):
        return
    remaining, dtype = (
        (tensors[0].numel(), tensors[0].dtype) if tensors else (math.prod(args[0]), None)
    )
    while remaining:
        count = remaining if remaining < 2 * _AT_ONCE else _AT_ONCE
        shape: Any = torch.empty(count, dtype=dtype) if tensors else [count]
        operator.function(shape, *args[1:], **kwargs)
        remaining -= count


class CardNumbers:
    """The card's own sequence of random numbers."""

    def __init__(self) -> None:
        self._state: Any = None

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        """What is drawn inside is of the card's sequence."""
        before = torch.get_rng_state()
        torch.set_rng_state(torch.Generator().get_state() if self._state is None else self._state)
        try:
            yield
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(before)
