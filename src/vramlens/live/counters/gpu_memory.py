"""What PyTorch and the driver count of GPUs that this process uses, read without changing anything.

PyTorch's counters are the host's: no kernel is waited for. A device is asked only where this
process has a context
already: ``cudaMemGetInfo`` and the like would make one. What an older version does not count is
    None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from vramlens.capture.torch_api import device_memory, pinned_memory
from vramlens.ground.program_errors import let_through

_COUNTED = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")


class Counts(NamedTuple):
    """PyTorch's counters of one device, as ``torch.cuda.memory_stats`` means them, in bytes."""

    requested: int
    allocated: int
    active: int
    reserved: int


class Pinned(NamedTuple):
    """Page-locked memory of the host, in bytes: what PyTorch has handed out, and that with what
    it keeps for later.
    """

    active: int
    owned: int


class OutsideBytes(NamedTuple):
    """Bytes of a device that are in use and not PyTorch's; whether they are certainly this
    process's own.
    """

    size_bytes: int
    is_own: bool


class ProcessGpus:
    """The GPUs of this process."""

    def __init__(self, torch: Any) -> None:
        self._torch, self._cuda = torch, torch.cuda
        self._stats: Callable[[int], Any] = torch._C._cuda_memoryStats

    def contexts(self) -> tuple[int, ...]:
        """Devices on which this process has a context; where PyTorch does not say, the current
        one.
        """
        ask = getattr(self._torch._C, "_cuda_hasPrimaryContext", None)
        if ask is None:
            return (self.current(),)
        return tuple(index for index in range(int(self._cuda.device_count())) if ask(index))

    def current(self) -> int:
        """The device that this thread uses."""
        return int(self._cuda.current_device())

    def counts(self, device: int) -> Counts | None:
        """PyTorch's counters; None for an allocator that does not count."""
        try:
            stats = self._stats(device)
            return Counts(*(int(stats[name]["all"]["current"]) for name in _COUNTED))
        except Exception as error:  # a pluggable allocator; before PyTorch 2.1
            let_through(error)
            return None

    def headroom(self) -> int | None:
        """What is free on the fullest device that holds tensors, PyTorch's cache included; None
        where that cannot be told.

        Never asks of the current device: that of a thread of ours is the first one, on which a
        rank of a job has nothing, and the question would make a context there.
        """
        try:
            held = {device: self._cuda.memory_allocated(device) for device in self.contexts()}
            return min(
                device_memory(self._cuda, device)[0]
                + int(self._cuda.memory_reserved(device))
                - int(size)
                for device, size in held.items()
                if size
            )
        except Exception as error:  # no context, or no such figure here
            let_through(error)
            return None

    def pinned(self) -> Pinned | None:
        """Page-locked memory; None before PyTorch 2.7."""
        active, owned = pinned_memory()
        return None if active is None or owned is None else Pinned(active, owned)

    def segments(self) -> list[dict[str, Any]] | None:
        """The allocator's segments with their blocks; None where that cannot be had without the
        recorded events.
        """
        try:
            return list(self._cuda.memory.memory_snapshot(include_traces=False))
        except Exception as error:  # before PyTorch 2.10; an allocator that has none
            let_through(error)
            return None

    def outside(self, device: int) -> OutsideBytes | None:
        """What the driver counts beside PyTorch's memory; takes about a millisecond."""
        from vramlens.capture.memory.device_ledger import ledger

        rows = ledger(device, ask_nccl=False)
        own_bytes = rows.bytes_of("this_process_other")
        if own_bytes is not None and rows.has_context:
            return OutsideBytes(own_bytes, True)
        other = rows.bytes_of("outside_pytorch")
        return None if other is None else OutsideBytes(other, False)

    def process_groups(self) -> int:
        """How many process groups ``torch.distributed`` has."""
        try:
            return len(self._torch.distributed.distributed_c10d._world.pg_map)
        except Exception as error:  # built without it
            let_through(error)
            return 0


def find_gpu(torch: Any) -> ProcessGpus | None:
    """The GPUs, once the program has begun to use one; never makes it begin."""
    try:
        return ProcessGpus(torch) if torch.cuda.is_initialized() else None
    except Exception as error:  # a build without CUDA
        let_through(error)
        return None
