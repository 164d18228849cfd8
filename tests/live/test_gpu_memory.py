"""The figures of a process's GPUs, by a PyTorch that is none: which devices are asked."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from vramlens.capture import torch_api
from vramlens.live.counters.gpu_memory import ProcessGpus
from vramlens.live.heap.tensors import TorchObjects
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
def test_headroom_is_that_of_a_device_with_tensors(devices_in_use: set[int]) -> None:
    """To ask of another would make a context there, of some hundred MiB."""
    asked: list[int] = []
    assert ProcessGpus(torch_of(devices_in_use, asked)).headroom() == 54 * GIB
    assert asked == [RANKS_GPU]


def test_headroom_of_no_device_is_unknown() -> None:
    asked: list[int] = []
    assert ProcessGpus(torch_of(set(), asked)).headroom() is None
    assert asked == []


def test_no_more_pinned_memory_is_handed_out_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.11 under FSDP2, 60 steps: 222,170,113 bytes of 2,195,461."""
    stats = {"active_bytes": {"current": 222_170_113}, "allocated_bytes": {"current": 2_195_461}}
    cuda = SimpleNamespace(host_memory_stats_as_nested_dict=lambda: stats)
    monkeypatch.setattr(torch_api, "cuda_in_use", lambda: cuda)
    assert torch_api.pinned_memory() == (2_195_461, 2_195_461)


def test_shapes_without_values_are_not_asked_for_their_address() -> None:
    torch = pytest.importorskip("torch")
    fake_mode = torch._subclasses.fake_tensor.FakeTensorMode()
    with fake_mode:
        fake = torch.empty(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TorchObjects(torch).place_of(fake) is None
