"""What PyTorch of this process holds on its devices, asked without making it begin to use one."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

from vramlens.capture.memory.driver import Gpu, GpuMemory


@dataclass(frozen=True, slots=True)
class Held:
    """What PyTorch holds on a device, by its own counters; ``has_context``: this process surely
    uses the device.
    """

    has_context: bool = False
    allocated_bytes: int | None = (
        0  # this and the next: None where the allocator in use does not count
    )
    reserved_bytes: int | None = 0
    pool_bytes: int = (
        0  # what of the reserved is in private pools; 0 also where PyTorch does not say
    )
    nccl_bytes: int | None = None  # of PyTorch's process groups; None where nobody counts
    nccl_certain: bool = True  # whether they are certainly on this device
    note: str = ""  # what cannot be split, as a sentence


class PyTorch:
    """What PyTorch of this process says, if the program has imported it; it is asked only once
    it uses a GPU.
    """

    def __init__(self) -> None:
        torch: Any = sys.modules.get("torch")
        module: Any
        self.torch, self.kind, self.module = torch, "cuda", None
        for kind in ("xpu", "cuda"):
            module = getattr(torch, kind, None)
            if module is not None and _says(module.is_initialized):
                self.kind, self.module = kind, module
        self.is_nvidia = self.kind == "cuda" and not _says(lambda: torch.version.hip)

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
        return None if self.module is None else _says(self.module.current_device)

    def properties(self, index: int) -> Any:
        """The device's properties as CUDA gives them; None before it is initialised."""
        return (
            None if self.module is None else _says(lambda: self.module.get_device_properties(index))
        )

    def gpus(self) -> tuple[Gpu, ...]:
        """The devices where NVML is not there to be asked."""
        count = 0 if self.module is None else _says(self.module.device_count) or 0
        return tuple(
            Gpu(index, getattr(self.properties(index), "name", None)) for index in range(count)
        )

    def held(self, index: int) -> Held:
        """The allocator's counters; nothing where this process does not use the device."""
        context = self._has_context(index)
        if self.module is None or context is False:
            return Held()
        try:
            stats = self.module.memory_stats(index)
        except (
            Exception
        ):  # a CUDAPluggableAllocator, such as RMM's, does not count (pytorch issue 133281)
            backend = _says(lambda: self.module.memory.get_allocator_backend()) or "not its own"
            note = (
                f"PyTorch's memory cannot be split here: its allocator ({backend}) does not count."
            )
            return Held(True, None, None, note=note)
        allocated, reserved = (
            int(stats.get(f"{key}_bytes.all.current", 0)) for key in ("allocated", "reserved")
        )
        pools = (key for key in stats if key.startswith("reserved_bytes_by_private_pools."))
        pool_bytes = sum(int(stats[key]) for key in pools if key.endswith(".all.current"))
        return Held(reserved > 0 or bool(context), allocated, reserved, pool_bytes)

    def with_nccl(self, index: int, held: Held) -> Held:
        """The same with NCCL's bytes, where PyTorch (2.12) and NCCL (2.29.7) count them:
        ``Backend.memory_stats``.
        """
        world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
        if world is None or self.module is None or not held.has_context:
            return held
        asked: list[Any] = []
        total, alone = None, sum(bool(self._has_context(gpu.index)) for gpu in self.gpus()) == 1
        sure = True
        for group in list(_says(lambda: world.pg_map) or ()):
            bound = getattr(getattr(group, "bound_device_id", None), "index", None)
            backend = _says(lambda group=group: group._get_backend(self.torch.device(self.kind)))
            if (self.current() if bound is None else bound) != index or any(
                backend is other for other in asked
            ):
                continue
            asked.append(backend)
            stats = _says(lambda backend=backend: backend.memory_stats())
            if stats and "total" in stats:
                total = (total or 0) + int(stats["total"])
                sure = sure and (alone or bound is not None)
        return replace(held, nccl_bytes=total, nccl_certain=sure)

    def device_memory(self, index: int, held: Held) -> GpuMemory | None:
        """``cudaMemGetInfo``, only where there is a context already: it would make one. On AMD,
        the current device.
        """
        if (
            self.module is None
            or not held.has_context
            or not (self.is_nvidia or self.current() == index)
        ):
            return None
        answer = _says(lambda: self.module.mem_get_info(index))
        return GpuMemory(int(answer[1]), int(answer[0]), None, None) if answer else None

    def _has_context(self, index: int) -> bool | None:
        """None where this PyTorch does not say and the device is not the current one."""
        ask = getattr(getattr(self.torch, "_C", None), f"_{self.kind}_hasPrimaryContext", None)
        if self.module is None or ask is None:
            return self.current() == index or None
        answer = _says(lambda: ask(index))
        return None if answer is None else bool(answer)


def _says(ask: Any) -> Any:
    """What a call returns; None where it is missing or fails."""
    try:
        return ask()
    except Exception:
        return None
