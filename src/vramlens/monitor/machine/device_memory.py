"""Free and total memory of the GPUs that this process sees, one question to the driver each."""

from __future__ import annotations

import sys
from typing import Any

from vramlens.capture.memory.driver import Gpu, driver


def visible_gpus(cuda: Any = None) -> tuple[Gpu, ...]:
    """The GPUs in CUDA's order; none without a driver.

    Args:
        cuda: ``torch.cuda`` once it is initialised.
    """
    nvml, _ = driver()
    return () if nvml is None else nvml.gpus(cuda)


def free_and_total(gpu: Gpu) -> tuple[int, int] | None:
    """Free and total bytes now; None where the driver does not say."""
    if gpu.handle is None:
        return None
    try:
        # Total and free mean the same in every version of this call; to list the processes would
        # take longest.
        info = sys.modules["pynvml"].nvmlDeviceGetMemoryInfo(gpu.handle)
        free, total = int(info.free), int(info.total)
        if 0 <= free <= total:
            return free, total
    except Exception:
        nvml, _ = driver()  # it knows what to do where another library has shut NVML down
        memory = None if nvml is None else nvml.memory(gpu)
        return None if memory is None else (memory.free_bytes, memory.total_bytes)
    return None
