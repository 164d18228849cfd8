"""The figures of a process's GPUs, by a PyTorch that is none: which devices are asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vramlens.live.counters.gpu_memory import ProcessGpus
from vramlens.units import GIB

RANKS_GPU = 3


def torch_of(devices_in_use: set[int], asked: list[int]) -> Any:
    """Of eight GPUs of 80 GiB; like a thread's, the current device is the first one."""

    def mem_get_info(device: int = 0) -> tuple[int, int]:
        asked.append(device)
        return 50 * GIB, 80 * GIB

    cuda = SimpleNamespace(
        device_count=lambda: 8,
        current_device=lambda: 0,
        mem_get_info=mem_get_info,
        memory_allocated=lambda device: 20 * GIB if device == RANKS_GPU else 0,
        memory_reserved=lambda device: 24 * GIB if device == RANKS_GPU else 0,
    )
    core = SimpleNamespace(
        _cuda_memoryStats=None, _cuda_hasPrimaryContext=lambda index: index in devices_in_use
    )
    return SimpleNamespace(cuda=cuda, _C=core)


@pytest.mark.parametrize("devices_in_use", [{RANKS_GPU}, {0, RANKS_GPU}])
def test_headroom_is_that_of_the_devices_in_use(devices_in_use: set[int]) -> None:
    """To ask of another would make a context there, of some hundred MiB."""
    asked: list[int] = []
    assert ProcessGpus(torch_of(devices_in_use, asked)).headroom() == 54 * GIB
    assert asked == [RANKS_GPU]


def test_headroom_of_no_device_is_unknown() -> None:
    asked: list[int] = []
    assert ProcessGpus(torch_of(set(), asked)).headroom() is None
    assert asked == []
