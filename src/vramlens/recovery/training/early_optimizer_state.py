"""An optimizer's state, made before its first step, by the optimizer's own code."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vramlens.recovery.memory_errors import OUT_OF_MEMORY, kind_of

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch


def _without_state(
    optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor]
) -> list[torch.Tensor]:
    return [parameter for parameter in parameters if not optimizer.state.get(parameter)]


def make_state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Makes the state that the first step would make; gives the parameters that have got one.

    ``_init_group`` of PyTorch's own optimizers (``torch/optim/adam.py`` and others) makes it with
    the values it would have anyway, so results do not change; it looks at the gradients only to see
    which parameters have one, for which a single zero, expanded, stands in. What makes its state
    otherwise (SGD's momentum, optimizers of other packages) is
    left alone: ``size_of_state_to_come`` tells how much that will be.

    Raises:
        torch.OutOfMemoryError: there is no room; state that was made in this call is dropped again.
    """
    begin = getattr(optimizer, "_init_group", None)
    if begin is None:
        return []
    trained = _trained(optimizer.param_groups)
    missing = _without_state(optimizer, trained)
    try:
        with _gradients_of_zero(missing):
            waiting = set(missing)
            for group in optimizer.param_groups:
                if not waiting.isdisjoint(group["params"]):
                    begin(group, *_lists(begin))
    except Exception as error:
        drop_state(optimizer, missing)
        if kind_of(error) == OUT_OF_MEMORY:
            raise
        return []  # settings that its own step would refuse, too, or another package's _init_group
    drop_state(optimizer, _without_state(optimizer, missing))
    return [parameter for parameter in missing if optimizer.state.get(parameter)]


@contextlib.contextmanager
def _gradients_of_zero(parameters: list[Any]) -> Iterator[None]:
    """Has a zero stand in for each gradient that is missing."""
    stand_ins = [p for p in parameters if p.grad is None and p.layout is torch.strided]
    try:
        for parameter in stand_ins:
            parameter.grad = _zero_like(parameter)
        yield
    finally:
        for parameter in stand_ins:
            parameter.grad = None


def _trained(groups: list[dict[str, Any]]) -> list[Any]:
    """The parameters of some groups that require a gradient."""
    parameters = itertools.chain.from_iterable(group["params"] for group in groups)
    return [parameter for parameter in parameters if parameter.requires_grad]


def drop_state(optimizer: torch.optim.Optimizer, parameters: list[Any]) -> None:
    """Takes back the state of these parameters, so that the optimizer makes it anew when it
    needs it.
    """
    for parameter in parameters:
        optimizer.state.pop(parameter, None)


def size_of_state_to_come(optimizer: torch.optim.Optimizer) -> int:
    """Bytes that the first step is still to allocate for good, as far as that is known: SGD's
    momentum.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return 0
    with_momentum = [group for group in optimizer.param_groups if group.get("momentum")]
    waiting = [
        parameter
        for parameter in _trained(with_momentum)
        if "momentum_buffer" not in optimizer.state.get(parameter, {})
    ]
    return sum(parameter.numel() * parameter.element_size() for parameter in waiting)


def state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All tensors of the state."""
    return [
        entry for state in optimizer.state.values() if isinstance(state, dict)
        for entry in state.values() if isinstance(entry, torch.Tensor)
    ]  # fmt: skip


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """What the state takes, in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state_tensors(optimizer))


def _zero_like(parameter: torch.Tensor) -> torch.Tensor:
    """A gradient of zeros that takes the room of one number."""
    return torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)


def _lists(begin: Any) -> list[list[Any]]:
    """Empty lists for the arguments that ``_init_group`` fills, whose number depends on the
    optimizer.
    """
    return [[] for _ in list(inspect.signature(begin).parameters)[1:]]
