"""Meters: bytes that are allocated, reserved and allowed, on a GPU, or counted by a simulation
on the CPU.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Protocol

from vramlens.capture.torch_api import Counters, connect, counters
from vramlens.capture.warn import harmless
from vramlens.errors import UsageError

if TYPE_CHECKING:
    import torch

    from vramlens.recovery.batch_size.scaled_requests import StepRequests
else:
    from vramlens.ground.late_torch import torch

_MOST_EVENTS = 1_000_000
"""Of a probe: two steps."""


class Meter(Protocol):
    """What recovery asks of a device."""

    kind: str

    def allocated_bytes(self) -> int:
        """Bytes of live tensors now."""

    def reserved_bytes(self) -> int:
        """Bytes that the allocator has from the driver."""

    def peak_bytes(self) -> int:
        """The most bytes allocated since ``restart``, or since the program began."""

    def figures(self) -> tuple[int, int, int]:
        """Bytes allocated now, their peak, and how often the allocator had to empty its cache,
        in one reading.
        """

    def waste_bytes(self) -> int:
        """Bytes that are free now, in pieces between live ones: they cannot be given back."""

    def restart(self) -> None:
        """Counts peaks from now."""

    def limit_bytes(self) -> tuple[int, str] | None:
        """How many bytes this process can allocate at most, and what sets that; None where there
        is no limit.
        """

    def release(self) -> None:
        """Gives what is cached back."""

    def failed_requests(self) -> int:
        """How many requests have failed since the program began, also those that something
        caught.
        """

    def note_requests(self) -> None:
        """Has the allocator's requests noted from now on, where they can be replayed."""

    def noted_requests(self, size: int) -> StepRequests | None:
        """What was asked for since ``note_requests``, by a probe of so many samples."""

    def stop_noting(self) -> None:
        """Ends what ``note_requests`` began."""


class CudaMeter:
    """PyTorch's own counters of one GPU."""

    kind = "gpu"

    def __init__(self, device: torch.device) -> None:
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._allocator = connect()
        self._is_noting = False

    def allocated_bytes(self) -> int:
        return self._counted().allocated_bytes

    def reserved_bytes(self) -> int:
        return self._counted().reserved_bytes

    def peak_bytes(self) -> int:
        return self._counted().peak_bytes

    def figures(self) -> tuple[int, int, int]:
        now = self._counted()
        return now.allocated_bytes, now.peak_bytes, now.retries

    def waste_bytes(self) -> int:
        return self._counted().waste_bytes

    def restart(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._index)

    def limit_bytes(self) -> tuple[int, str] | None:
        """What is reserved plus what the driver has free, or the process's limit if that is
        less.
        """
        free, total = torch.cuda.mem_get_info(self._index)
        reserved = self.reserved_bytes()
        fraction = 1.0
        if hasattr(torch.cuda, "get_per_process_memory_fraction"):
            fraction = float(torch.cuda.get_per_process_memory_fraction(self._index))
        allowed = int(total * fraction)
        room = reserved + free
        if fraction < 1.0 and allowed < room:
            return allowed, f"the process's limit of {100 * fraction:.0f}% of the device"
        others_bytes = total - room
        if others_bytes > total // 10:
            return room, "the device minus other processes and CUDA contexts"
        return room, "the device's memory"

    def release(self) -> None:
        torch.cuda.empty_cache()

    def note_requests(self) -> None:
        """By PyTorch's own recording, unless somebody is recording already."""
        if self._allocator is None or self._allocator.history_is_on():
            return
        self._is_noting = True  # before it is so: an interrupt in between must not leave it on
        try:
            self._allocator.start_history(_MOST_EVENTS)
        except RuntimeError:  # an allocator that keeps no history
            self._is_noting = False

    @harmless("reading the requests of a probe")
    def noted_requests(self, size: int) -> StepRequests | None:
        if self._allocator is None or not self._is_noting:
            return None
        from vramlens.recovery.batch_size.scaled_requests import requests_of_snapshot

        snapshot = self._allocator.snapshot()
        if any(len(events) >= _MOST_EVENTS for events in snapshot.get("device_traces", ())):
            return None  # the first ones are gone
        return requests_of_snapshot(snapshot, size, self._index, torch.__version__)

    def stop_noting(self) -> None:
        if self._allocator is not None and self._is_noting:
            self._allocator.stop_history()
            self._is_noting = False

    def failed_requests(self) -> int:
        return self._counted().failures

    def _counted(self) -> Counters:
        return counters(torch.cuda, self._index) or Counters()


class _WithoutAllocator:
    """A device without an allocator: there is nothing to replay, cached or lost between blocks."""

    def note_requests(self) -> None:
        """There is no allocator to replay."""

    def noted_requests(self, size: int) -> StepRequests | None:
        return None

    def stop_noting(self) -> None:
        """Nothing was begun."""

    def waste_bytes(self) -> int:
        return 0

    def release(self) -> None:
        """There is no cache."""


class NoMeter(_WithoutAllocator):
    """The CPU, whose memory is the system's: nothing is counted, nothing limited."""

    kind = "none"

    def allocated_bytes(self) -> int:
        return 0

    def reserved_bytes(self) -> int:
        return 0

    def peak_bytes(self) -> int:
        return 0

    def figures(self) -> tuple[int, int, int]:
        return 0, 0, 0

    def restart(self) -> None:
        """Counts nothing."""

    def limit_bytes(self) -> tuple[int, str] | None:
        return None

    def failed_requests(self) -> int:
        return 0


class CountingMeter(_WithoutAllocator):
    """A simulated device: counts the bytes of all storages that operators make on the CPU while it
    is entered.

    Past ``capacity_bytes`` an operator raises ``torch.OutOfMemoryError``: recovery meets real
    failures without a GPU. Sizes are rounded up to 512 bytes, as PyTorch's allocator does; nothing
    fragments.

    Args:
        capacity_bytes: the simulated device's size; None: without bound.
        meta: count tensors of the meta device, which have shapes only.
    """

    kind = "simulated"

    def __init__(self, capacity_bytes: int | None = None, *, meta: bool = False) -> None:
        self.capacity_bytes, self._meta = capacity_bytes, meta
        self.failures = 0
        self._now = self._peak = 0
        self._known: set[int] = set()
        self._mode: Any = None

    def __enter__(self) -> CountingMeter:
        self._mode = _counting_mode(self._count)
        self._mode.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._mode.__exit__(*raised)

    def track(self, *tensors: torch.Tensor) -> None:
        """Counts tensors that were there before."""
        for tensor in tensors:
            self._count(tensor)

    def allocated_bytes(self) -> int:
        return self._now

    def reserved_bytes(self) -> int:
        return self._now

    def peak_bytes(self) -> int:
        return self._peak

    def figures(self) -> tuple[int, int, int]:
        return self._now, self._peak, 0

    def restart(self) -> None:
        self._peak = self._now

    def limit_bytes(self) -> tuple[int, str] | None:
        return (
            None if self.capacity_bytes is None else (self.capacity_bytes, "the simulated device")
        )

    def failed_requests(self) -> int:
        return self.failures

    def _count(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided:
            for part in _parts_of_sparse(tensor):
                self._count(part)
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known or (storage.device.type == "meta") != self._meta:
            return
        size = -(-storage.nbytes() // 512) * 512
        if self.capacity_bytes is not None and self._now + size > self.capacity_bytes:
            self.failures += 1
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. The simulated"
                f" device has a capacity of {self.capacity_bytes / 2**20:.2f} MiB of which"
                f" {(self.capacity_bytes - self._now) / 2**20:.2f} MiB is free."
            )
        self._known.add(key)
        self._now += size
        self._peak = max(self._peak, self._now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._now -= size


def _parts_of_sparse(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that a sparse one is made of; none for layouts that are kept elsewhere
    (oneDNN's).
    """
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def _counting_mode(count: Any) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            output = function(*args, **(kwargs or {}))
            for leaf in tree_iter(output):
                if isinstance(leaf, torch.Tensor):
                    count(leaf)
            return output

    return Counting()  # type: ignore[no-untyped-call]


def meter_of(device: torch.device) -> Meter:
    """The meter of a device."""
    return CudaMeter(device) if device.type == "cuda" else NoMeter()


def device_of(model: torch.nn.Module, function: str) -> torch.device:
    """The device of a model's first parameter.

    Raises:
        UsageError: it has none.
    """
    first = next(iter(model.parameters()), None)
    if first is None:
        raise UsageError(f"{function}: the model has no parameters")
    return first.device


def not_counted(function: str, device: str = "") -> UsageError:
    """The error of a function that needs a device whose bytes are counted."""
    why = (
        "the model is on the CPU"
        if device == "cpu"
        else f"bytes are not counted on {device or 'this device'}"
    )
    where = "run it where the model trains, on a GPU"
    if function == "find_batch_size":
        where += ', or pass device="predicted", limit="24GiB"'
    return UsageError(f"{function}: {why}: {where}")
