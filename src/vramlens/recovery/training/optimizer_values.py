"""The values that an optimizer's step changes: whether a step that failed had begun, and how to
undo it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.recovery.memory_errors import OutOfMemoryCaught
from vramlens.recovery.training.rollback import equal_values, host_copy, version_of

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_COMPARED_BYTES = 16 * 1024**2
_DEPTH = 8


def tensors_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """All tensors that an optimizer holds: parameters, state, and what its own attributes keep."""
    visited: set[int] = set()
    waiting: list[tuple[Any, int]] = [(vars(optimizer), 0)]
    while waiting:
        holder, depth = waiting.pop()
        if id(holder) in visited or depth > _DEPTH:
            continue
        visited.add(id(holder))
        if isinstance(holder, torch.Tensor):
            yield holder
        elif isinstance(holder, dict):
            waiting += [(inner, depth + 1) for inner in holder.values()]
        elif isinstance(holder, (list, tuple)):
            waiting += [(inner, depth + 1) for inner in holder]
        elif isinstance(holder, torch.optim.Optimizer):
            waiting.append((vars(holder), depth + 1))


class StepValues:
    """Whether a step has changed anything since ``note``: values decide where they are few, else
    what is known of it.

    PyTorch's fused optimizers and all that write ``parameter.data`` leave ``_version`` as it is. Up
    to 16 MiB of parameters and state are copied and compared. Above, only PyTorch's own optimizers
    can be judged: a plain or ``foreach`` step raises the version of all that it changes, a fused
        one the ``step`` of each parameter.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
    ) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._versions: list[int] = []
        self._counters: list[float] = []
        self._is_exact = False

    def save(self) -> bool:
        """Keeps the values as they are; False where there was no room for a copy."""
        tensors = self._tensors()
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self._versions = [version_of(tensor) for tensor in tensors]
        self._is_exact = size <= _COMPARED_BYTES
        if self._is_exact:
            with OutOfMemoryCaught() as caught:
                self._copy(tensors)
            if caught.happened:
                self._is_exact, self._copies = False, []
        if not self._is_exact:
            self._counters = self._steps_made()
        return self._is_exact or size > _COMPARED_BYTES

    def changed(self) -> bool | None:
        """Whether something has changed; None: nothing can tell."""
        tensors = self._tensors()
        if [version_of(tensor) for tensor in tensors] != self._versions:
            return True  # also where the step made state
        if self._is_exact:
            pairs = zip(tensors, self._copies, strict=True)
            return any(
                now is not then or not equal_values(now, copy) for now, (then, copy) in pairs
            )
        if self._steps_made() != self._counters:
            return True
        return False if self._is_judged() else None

    def _copy(self, tensors: list[torch.Tensor]) -> None:
        """Copies all; into the copies of the step before where these are the same tensors: few
        calls, no requests.
        """
        are_same = len(tensors) == len(self._copies) and all(
            now is then and now.shape == copy.shape and now.device == copy.device
            for now, (then, copy) in zip(tensors, self._copies, strict=True)
        )
        if not are_same:
            self._copies = [(tensor, tensor.detach().clone()) for tensor in tensors]
            return
        groups: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for tensor, copy in self._copies:
            copies, originals = groups.setdefault((tensor.device, tensor.dtype), ([], []))
            copies.append(copy)
            originals.append(tensor.detach())
        for copies, originals in groups.values():
            torch._foreach_copy_(copies, originals)

    def _tensors(self) -> list[torch.Tensor]:
        tensors = {
            id(tensor): tensor for tensor in (*self._parameters, *tensors_of(self._optimizer))
        }
        return list(tensors.values())

    def _steps_made(self) -> list[float]:
        """The counter of each parameter, where they are on the host."""
        states = [state for state in self._optimizer.state.values() if isinstance(state, dict)]
        counters = [
            state["step"] for state in states if isinstance(state.get("step"), torch.Tensor)
        ]
        return [float(counter) for counter in counters if counter.device.type == "cpu"]

    def _is_judged(self) -> bool:
        """Whether PyTorch's own counters are known to tell of each change that this optimizer
        makes.
        """
        if not type(self._optimizer).__module__.startswith("torch.optim."):
            return False
        return not any(group.get("fused") for group in self._optimizer.param_groups)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A value as it was: a container with its contents, a tensor with a copy, or a plain value."""

    value: Any
    contents: Any = None


class Backup:
    """Parameters, state and settings of an optimizer in host memory, to undo a step that failed
    half way.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            self._kept = _kept(vars(optimizer), set(), 0)

    def restore(self) -> None:
        """Back to what they were."""
        with torch.no_grad():
            _put_back(self._kept)


def _kept(value: Any, visited: set[int], depth: int) -> _Kept:
    is_first = id(value) not in visited
    if isinstance(value, (torch.Tensor, dict, list)):
        visited.add(id(value))
    if not is_first or depth > _DEPTH:
        return _Kept(value)
    if isinstance(value, torch.Tensor):
        return _Kept(value, host_copy(value))
    if isinstance(value, dict):
        return _Kept(value, {key: _kept(inner, visited, depth + 1) for key, inner in value.items()})
    if isinstance(value, (list, tuple)):
        return _Kept(value, [_kept(inner, visited, depth + 1) for inner in value])
    if isinstance(value, torch.optim.Optimizer):
        return _Kept(value, _kept(vars(value), visited, depth + 1))
    return _Kept(value)


def _put_back(copied: _Kept) -> Any:
    original, contents = copied.value, copied.contents
    if contents is None:
        return original
    if isinstance(original, torch.Tensor):
        original.detach().copy_(contents)
    elif isinstance(original, dict):
        _put_entries_back(original, contents)
    elif isinstance(original, list):
        original[:] = [_put_back(inner) for inner in contents]
    elif isinstance(original, tuple):
        for inner in contents:
            _put_back(inner)
    else:
        _put_back(contents)
    return original


def _put_entries_back(original: dict[Any, Any], contents: dict[Any, _Kept]) -> None:
    entries = {key: _put_back(inner) for key, inner in contents.items()}
    for key in original.keys() - entries.keys():
        del original[key]
    original.update(entries)
