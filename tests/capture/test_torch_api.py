"""Allocators that do not answer: PyTorch's pluggable ones, and cudaMallocAsync, raise where
others tell.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vramlens.capture.torch_api import Allocator


def refuses(*_arguments: Any) -> Any:
    raise RuntimeError("CUDAPluggableAllocator does not yet support this")


NAMES = ("_cuda_isHistoryEnabled", "_cuda_getMemoryFraction", "_cuda_memoryStats")
TORCH = SimpleNamespace(_C=SimpleNamespace(**dict.fromkeys(NAMES, refuses)))
CUDA = SimpleNamespace(
    memory=SimpleNamespace(_snapshot=refuses, memory_snapshot=refuses), memory_stats=refuses
)


def test_an_allocator_that_tells_nothing_costs_no_recording() -> None:
    gpu = Allocator(TORCH, CUDA, "cuda")
    assert gpu.history_is_on() is False
    assert gpu.memory_fraction(0) is None
    assert gpu.counters(0) == (0, 0)
    assert gpu.stats(0) == {}
    assert gpu.state() is None
    assert gpu.snapshot() == {"segments": [], "device_traces": []}
