"""Rollback: a model and the random numbers as they were before an attempt that failed."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.errors import VramlensError
from vramlens.units import format_size

if TYPE_CHECKING:
    import torch
else:
    from vramlens.ground.late_torch import torch

_LARGE_BYTES = 16 * 1024**2
_COPIED_EACH_TIME_BYTES = 64 * 1024**2


class RandomState:
    """All random numbers' state: Python's, NumPy's (where it is imported), PyTorch's on the CPU
    and on some devices.
    """

    def __init__(self, devices: Iterable[torch.device] = ()) -> None:
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None
        self._cpu = torch.get_rng_state()
        self._devices = [
            (device, torch.cuda.get_rng_state(device))
            for device in devices
            if device.type == "cuda"
        ]

    def moved(self) -> bool:
        """Whether random numbers have been drawn since."""
        numpy = sys.modules.get("numpy")
        if self._numpy is not None and numpy is not None:
            now = numpy.random.get_state()
            if now[2] != self._numpy[2] or (now[1] != self._numpy[1]).any():
                return True
        if random.getstate() != self._python or not torch.equal(torch.get_rng_state(), self._cpu):
            return True
        return any(
            not torch.equal(torch.cuda.get_rng_state(device), state)
            for device, state in self._devices
        )

    def restore(self) -> None:
        """Back to what it was."""
        random.setstate(self._python)
        numpy = sys.modules.get("numpy")
        if self._numpy is not None and numpy is not None:
            numpy.random.set_state(self._numpy)
        torch.set_rng_state(self._cpu)
        for device, state in self._devices:
            torch.cuda.set_rng_state(state, device)


class BuffersLost(VramlensError):
    """A large buffer was changed by a failed attempt, and there is no copy of it from before."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """A buffer of a module: where it lies, and what lay there."""

    holder: dict[str, Any]
    key: str
    tensor: torch.Tensor | None
    name: str

    @property
    def place(self) -> tuple[int, str]:
        return id(self.holder), self.key


class Buffers:
    """A model's buffers as they were when ``save`` was called last: their values decide, not
    version counters.

    PyTorch's norms change running statistics without raising ``_version``. So each save copies all
    buffers, but for
    very large ones together: these are copied to the host once, and again when a step was seen to
    change them. Where such a one differs after a failed attempt, nothing tells since when, and
    ``restore`` says so.

    Args:
        models: modules whose buffers are kept.
        all_of_them: copy the large ones with each save as well.
    """

    def __init__(self, *models: torch.nn.Module, all_of_them: bool = False) -> None:
        self._modules = [
            (f"{name}." if name else "", module)
            for model in models for name, module in model.named_modules()
        ]  # fmt: skip
        self._all = all_of_them
        self._slots: list[_Slot] = []
        self._copied: list[tuple[_Slot, torch.Tensor]] = []
        self._resting: dict[
            int, tuple[_Slot, torch.Tensor, int]
        ] = {}  # identity: copy on the host, version

    def save(self) -> None:
        """Keeps them; called before an attempt."""
        slots = self._now()
        if not slots and not self._slots:
            return
        resting = self._large(slots)
        copied = [
            slot for slot in slots if slot.tensor is not None and id(slot.tensor) not in resting
        ]
        with torch.no_grad():
            self._copied = self._copies_of(copied)
        self._slots = slots

    def _copies_of(self, slots: list[_Slot]) -> list[tuple[_Slot, torch.Tensor]]:
        """Copies of these tensors, written over the last ones where these are of the same."""
        if [id(slot.tensor) for slot in slots] != [id(slot.tensor) for slot, _ in self._copied]:
            return [(slot, _copy(slot.tensor)) for slot in slots if slot.tensor is not None]
        return [
            (slot, _copied_into(copy, slot.tensor))
            for slot, (_, copy) in zip(slots, self._copied, strict=True)
        ]

    def restore(self) -> None:
        """Back to what they were.

        Raises:
            BuffersLost: a large one has changed since it was copied; nothing tells whether before
                this attempt.
        """
        saved_places = {slot.place for slot in self._slots}
        for slot in self._now():
            if slot.place not in saved_places:
                del slot.holder[slot.key]
        with torch.no_grad():
            for slot, copy in self._copied:
                assert slot.tensor is not None
                slot.tensor.copy_(copy)  # the tensor itself: others may share it
        for slot in self._slots:
            slot.holder[slot.key] = slot.tensor
        for slot, copy, _ in self._resting.values():
            assert slot.tensor is not None
            if not equal_values(slot.tensor, copy.to(slot.tensor.device)):
                raise BuffersLost(
                    f"guard: the buffer {slot.name} ({format_size(_bytes(slot.tensor))}) has "
                    "changed since it was copied, and it is unknown whether the failed attempt "
                    "changed it"
                )

    def changed(self) -> list[str]:
        """The names of those that are not what they were when they were saved; waits for the
        GPU.
        """
        slots = self._now()
        had_tensor = {slot.place: slot.tensor is not None for slot in self._slots}
        replaced = [
            slot.name for slot in slots if had_tensor.get(slot.place) != (slot.tensor is not None)
        ]
        return [*replaced, *self._overwritten(slots)]

    def _overwritten(self, slots: list[_Slot]) -> Iterator[str]:
        copies = {slot.place: copy for slot, copy in self._copied}
        for slot in slots:
            copy = copies.get(slot.place)
            if copy is not None and slot.tensor is not None and not equal_values(slot.tensor, copy):
                yield slot.name
        for slot, _, version in self._resting.values():
            if version_of(slot.tensor) != version:
                yield slot.name

    def values(self) -> dict[str, torch.Tensor]:
        """Copies of all as they are now, by name."""
        return {slot.name: _copy(slot.tensor) for slot in self._now() if slot.tensor is not None}

    def tensors(self) -> list[torch.Tensor]:
        """All of them."""
        return [slot.tensor for slot in self._now() if slot.tensor is not None]

    def _now(self) -> list[_Slot]:
        return [
            _Slot(module._buffers, key, tensor, prefix + key)
            for prefix, module in self._modules if module._buffers
            for key, tensor in module._buffers.items()
        ]  # fmt: skip

    def _large(self, slots: list[_Slot]) -> set[int]:
        """The identities of those that are copied to the host once, because they are large and
        do not change.
        """
        if self._all:
            return set()
        sizes = sorted(
            (_bytes(slot.tensor), index)
            for index, slot in enumerate(slots)
            if slot.tensor is not None
        )
        total, resting = 0, {}
        for size, index in sizes:
            total += size
            tensor = slots[index].tensor
            if total <= _COPIED_EACH_TIME_BYTES or tensor is None:
                continue
            resting_copy = self._resting.get(id(tensor))
            if resting_copy is None or resting_copy[2] == version_of(tensor):
                resting[id(tensor)] = resting_copy or (
                    slots[index],
                    host_copy(tensor),
                    version_of(tensor),
                )
        self._resting = resting
        return set(resting)


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


def version_of(tensor: Any) -> int:
    """How often a tensor was changed in place, as far as PyTorch counts; 0 where it does not."""
    try:
        return tensor._version  # type: ignore[no-any-return]
    except (
        AttributeError,
        RuntimeError,
    ):  # None; made in inference mode, and so not changed by training
        return 0


def _bytes(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel() * tensor.element_size()


def equal_values(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors have the same values; those that are not a number are equal to
    themselves.
    """
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.device != second.device:
        first = first.detach().to(second.device)
    differs = first != second
    if first.dtype.is_floating_point or first.dtype.is_complex:
        differs &= ~((first != first) & (second != second))
    return not bool(differs.any())


def _copied_into(copy: torch.Tensor, tensor: Any) -> torch.Tensor:
    if (
        copy.shape != tensor.shape or copy.dtype != tensor.dtype
    ):  # resized in place, or moved by .to()
        return _copy(tensor)
    return copy.copy_(tensor)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() * tensor.element_size() > _LARGE_BYTES:
        return host_copy(tensor)
    return tensor.detach().clone()


def host_copy(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy in host memory, which no simulated device counts as its own; dtype None: that of
    the tensor.
    """
    if tensor.device.type != "cpu":
        return tensor.detach().to("cpu", dtype, copy=True)
    with on_host():
        return (
            tensor.detach().to(dtype, copy=True) if dtype is not None else tensor.detach().clone()
        )


def on_host() -> contextlib.AbstractContextManager[None]:
    """Tensors made on the CPU inside of the block are the host's: no simulated device counts
    them.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
