"""Rollback: a model and the random numbers as they were before an attempt that failed."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
else:
    from vramlens.recovery.late_torch import torch

_LARGE_BYTES = 16 * 1024**2


class RandomState:
    """All random numbers' state: Python's, NumPy's (where it is imported), PyTorch's on the CPU and on some devices."""

    def __init__(self, devices: Iterable[torch.device] = ()) -> None:
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None
        self._cpu = torch.get_rng_state()
        self._devices = [(device, torch.cuda.get_rng_state(device)) for device in devices if device.type == "cuda"]

    def restore(self) -> None:
        """Back to what it was."""
        random.setstate(self._python)
        numpy = sys.modules.get("numpy")
        if self._numpy is not None and numpy is not None:
            numpy.random.set_state(self._numpy)
        torch.set_rng_state(self._cpu)
        for device, state in self._devices:
            torch.cuda.set_rng_state(state, device)


class Buffers:
    """A model's buffers as they were when ``save`` was called last.

    A first save copies all; from then on only those that a step was seen to change are copied, so that a model without
    running statistics costs nothing. Large ones wait in host memory.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._slots = [(module._buffers, key) for module in model.modules() for key in module._buffers]
        self._changing: set[int] = set()
        self._seen: list[tuple[int, int]] | None = None  # identity and version
        self._saved: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def save(self) -> None:
        """Keeps them; called before an attempt."""
        if not self._slots:
            return
        now = self._now()
        if self._seen is None:
            chosen = range(len(self._slots))
        else:
            self._note(now)
            chosen = sorted(self._changing)  # type: ignore[assignment]
        self._seen = now
        self._saved = []
        for index in chosen:
            holder, key = self._slots[index]
            tensor = holder.get(key)
            if tensor is not None:
                self._saved.append((index, tensor, _copy(tensor)))

    def settle(self) -> None:
        """Notes which of them the attempt changed; called after one that succeeded."""
        if self._slots:
            now = self._now()
            self._note(now)
            self._seen, self._saved = now, []

    def restore(self) -> None:
        """Back to what they were."""
        with torch.no_grad():
            for index, tensor, copy in self._saved:
                holder, key = self._slots[index]
                tensor.copy_(copy)  # the tensor itself: others may share it
                holder[key] = tensor
        self._seen = self._now()

    def changed_tensors(self) -> list[torch.Tensor]:
        """Those that steps change."""
        found = (holder.get(key) for holder, key in (self._slots[index] for index in sorted(self._changing)))
        return [tensor for tensor in found if tensor is not None]

    def _note(self, now: list[tuple[int, int]]) -> None:
        if self._seen is not None and now != self._seen:
            self._changing |= {i for i, (a, b) in enumerate(zip(now, self._seen, strict=True)) if a != b}

    def _now(self) -> list[tuple[int, int]]:
        return [(id(buffer), _version(buffer)) for holder, key in self._slots for buffer in [holder.get(key)]]


class Gradients:
    """Gradients as they were before a call: none, usually; else copies in host memory."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        with torch.no_grad():
            self._copies = {
                index: (parameter.grad, host_copy(parameter.grad))
                for index, parameter in enumerate(parameters)
                if parameter.grad is not None
            }

    @property
    def any(self) -> bool:
        """Whether there were some."""
        return bool(self._copies)

    def restore(self) -> None:
        """Back to what they were."""
        with torch.no_grad():
            for index, parameter in enumerate(self._parameters):
                if index not in self._copies:
                    parameter.grad = None
                    continue
                gradient, copy = self._copies[index]
                gradient.copy_(copy)
                parameter.grad = gradient


class Versions:
    """Tells whether any of some tensors was changed in place since: by PyTorch's own version counters."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._sum = sum(map(_version, tensors))

    def changed(self) -> bool:
        """Whether one of them has changed."""
        return sum(map(_version, self._tensors)) != self._sum


def _version(tensor: Any) -> int:
    try:
        return tensor._version  # type: ignore[no-any-return]
    except (AttributeError, RuntimeError):  # None; made in inference mode, and so not changed by training
        return 0


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() * tensor.element_size() > _LARGE_BYTES:
        return host_copy(tensor)
    return tensor.detach().clone()


def host_copy(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy in host memory, which no simulated device counts as its own; dtype None: that of the tensor."""
    if tensor.device.type != "cpu":
        return tensor.detach().to("cpu", dtype, copy=True)
    with on_host():
        return tensor.detach().to(dtype, copy=True) if dtype is not None else tensor.detach().clone()


def on_host() -> contextlib.AbstractContextManager[None]:
    """Tensors made on the CPU inside of the block are the host's: no simulated device counts them."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
