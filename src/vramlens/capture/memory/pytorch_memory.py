"""The memory that PyTorch of this process holds on its devices, asked without making it begin to
use one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from vramlens.capture.memory.driver import Gpu, GpuMemory
from vramlens.capture.torch_api import context_asker, device_memory, flat_stats
from vramlens.ground.program_errors import answer_of, let_through


@dataclass(frozen=True, slots=True)
class PyTorchCounters:
    """The memory that PyTorch holds on a device, by its own counters.

    Attributes:
        has_context: whether this process surely uses the device.
        allocated_bytes, reserved_bytes: None where the allocator in use does not count.
        pool_bytes: what of the reserved is in private pools; 0 also where PyTorch does not say.
        nccl_bytes: of PyTorch's process groups; None where nobody counts.
        nccl_certain: whether they are certainly on this device.
        note: what cannot be split, as a sentence.
    """

    has_context: bool = False
    allocated_bytes: int | None = 0
    reserved_bytes: int | None = 0
    pool_bytes: int = 0
    nccl_bytes: int | None = None
    nccl_certain: bool = True
    note: str = ""


class PyTorch:
    """PyTorch's answers of this process, if the program has imported it; it is asked only once
    it uses a GPU.
    """

    def __init__(self) -> None:
        torch: Any = sys.modules.get("torch")
        module: Any
        self.torch, self.kind = torch, "cuda"
        self.module: Any = None
        for kind in ("xpu", "cuda"):
            module = getattr(torch, kind, None)
            if module is not None and answer_of(module.is_initialized):
                self.kind, self.module = kind, module
        self.is_nvidia = self.kind == "cuda" and not answer_of(lambda: torch.version.hip)

    def index_of(self, device: Any) -> int:
        """The number in ``1``, ``"cuda:1"`` or a ``torch.device``; the current device's where
        none is in it.
        """
        text = (
            device.rpartition(":")[2]
            if isinstance(device, str)
            else getattr(device, "index", device)
        )
        number = self.current() if text is None or text in ("cuda", "xpu") else int(text)
        return number or 0

    def current(self) -> int | None:
        """The device that the calling thread uses; None before there is one."""
        return None if self.module is None else answer_of(self.module.current_device)

    def properties(self, index: int) -> Any:
        """The device's properties as CUDA gives them; None before it is initialised."""
        return (
            None
            if self.module is None
            else answer_of(lambda: self.module.get_device_properties(index))
        )

    def gpus(self) -> tuple[Gpu, ...]:
        """The devices where NVML is not there to be asked."""
        count = 0 if self.module is None else answer_of(self.module.device_count) or 0
        return tuple(
            Gpu(index, getattr(self.properties(index), "name", None)) for index in range(count)
        )

    def counters(self, index: int) -> PyTorchCounters:
        """The allocator's counters; nothing where this process does not use the device."""
        context = self._has_context(index)
        if self.module is None or context is False:
            return PyTorchCounters()
        try:
            stats = flat_stats(self.module, index)
        except Exception as error:
            let_through(error)
            # A CUDAPluggableAllocator, such as RMM's, does not count (pytorch issue 133281).
            backend = answer_of(lambda: self.module.memory.get_allocator_backend()) or "not its own"
            note = (
                f"PyTorch's memory cannot be broken down here: its allocator ({backend}) has no "
                "counters."
            )
            return PyTorchCounters(True, None, None, note=note)
        allocated, reserved = (
            int(stats.get(f"{key}_bytes.all.current", 0)) for key in ("allocated", "reserved")
        )
        pool_bytes = sum(
            int(figure)
            for key, figure in stats.items()
            if key.startswith("reserved_bytes_by_private_pools.") and key.endswith(".all.current")
        )
        return PyTorchCounters(reserved > 0 or bool(context), allocated, reserved, pool_bytes)

    def with_nccl(self, index: int, counters: PyTorchCounters) -> PyTorchCounters:
        """The same with NCCL's bytes, where PyTorch (2.12) and NCCL (2.29.7) count them:
        ``Backend.memory_stats``.
        """
        world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
        if world is None or self.module is None or not counters.has_context:
            return counters
        uses_one_device = sum(bool(self._has_context(gpu.index)) for gpu in self.gpus()) == 1
        total, is_certain = None, True
        for backend, is_bound in self._backends_on(index, world):
            stats = answer_of(lambda backend=backend: backend.memory_stats())
            if stats and "total" in stats:
                total = (total or 0) + int(stats["total"])
                is_certain &= uses_one_device or is_bound
        return replace(counters, nccl_bytes=total, nccl_certain=is_certain)

    def _backends_on(self, index: int, world: Any) -> Iterator[tuple[Any, bool]]:
        """Yields the process groups' backends on a device, each once, and whether it is bound to
        that device.
        """
        backends: list[Any] = []
        for group in list(answer_of(lambda: world.pg_map) or ()):
            bound = getattr(getattr(group, "bound_device_id", None), "index", None)
            if (self.current() if bound is None else bound) != index:
                continue
            backend = self._backend_of(group)
            if not any(backend is other for other in backends):
                backends.append(backend)
                yield backend, bound is not None

    def _backend_of(self, group: Any) -> Any:
        return answer_of(lambda: group._get_backend(self.torch.device(self.kind)))

    def device_memory(self, index: int, counters: PyTorchCounters) -> GpuMemory | None:
        """``cudaMemGetInfo``, only where there is a context already: it would make one. On AMD,
        the current device.
        """
        if (
            self.module is None
            or not counters.has_context
            or not (self.is_nvidia or self.current() == index)
        ):
            return None
        answer = answer_of(lambda: device_memory(self.module, index))
        return GpuMemory(answer[1], answer[0], None, None) if answer else None

    def _has_context(self, index: int) -> bool | None:
        """None where this PyTorch does not say and the device is not the current one."""
        ask = context_asker(self.torch, self.kind)
        if self.module is None or ask is None:
            return self.current() == index or None
        answer = answer_of(lambda: ask(index))
        return None if answer is None else bool(answer)
