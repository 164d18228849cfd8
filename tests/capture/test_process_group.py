"""A process's place in its job, from fakes and from a real gloo group of one."""

from __future__ import annotations

import datetime
import importlib.util
import os
import socket
import subprocess
import sys
import types
from typing import Any

import pytest

from support.installed import PYTHON_PATH
from vramlens.capture import process_group
from vramlens.capture.process_group import distributed_state, warn_if_not_destroyed

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
}


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name == "torch" or name.startswith("torch.distributed")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(process_group, "_watch", process_group._Watch())


class FakeCuda(types.SimpleNamespace):
    def __init__(self, device: int = 0, count: int = 4, *, initialized: bool = True) -> None:
        super().__init__(device=device, count=count, initialized=initialized)
        self.set_device = self._set

    def is_initialized(self) -> bool:
        return self.initialized

    def current_device(self) -> int:
        assert self.initialized, "asking would initialise CUDA"
        return self.device

    def device_count(self) -> int:
        return self.count

    def _set(self, device: int) -> None:
        self.initialized, self.device = True, device


def plug_torch(monkeypatch: pytest.MonkeyPatch, cuda: Any) -> None:
    module = types.ModuleType("torch")
    module.cuda = cuda  # type: ignore[attr-defined]
    module.__spec__ = types.SimpleNamespace(_initializing=False)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "torch", module)


def plug_group(monkeypatch: pytest.MonkeyPatch, **broken: Any) -> None:
    class Backend:
        options = types.SimpleNamespace(_timeout=datetime.timedelta(minutes=10))

    class Group:
        group_desc = "default_pg"
        _device_types = ("cuda",)

        def _get_backend(self, device: object) -> Backend:
            return Backend()

    group = Group()
    world = types.SimpleNamespace(
        default_pg=group,
        pg_map={group: ("nccl", None)},
        pg_group_ranks={group: {0: 0, 1: 1}},
        pg_names={group: "0"},
        pg_backend_config={group: "cuda:nccl"},
    )
    module = types.ModuleType("torch.distributed")
    fields: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "get_rank": lambda: 1,
        "get_world_size": lambda: 2,
        "get_backend": lambda: "nccl",
        "distributed_c10d": types.SimpleNamespace(_world=world),
    }
    fields |= broken
    vars(module).update(fields)
    monkeypatch.setitem(sys.modules, "torch.distributed", module)


@pytest.mark.parametrize(
    ("environment", "launcher", "rank"),
    [
        ({}, "none", None),
        (TORCHRUN, "torchrun", 3),
        ({**TORCHRUN, "ACCELERATE_MIXED_PRECISION": "no"}, "accelerate", 3),
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "SLURM_NTASKS": "8"}, "mpi", 5),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}, "slurm", 2),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, "none", None),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "mpi", 1),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "environment", 1),
        ({"RANK": "1"}, "none", None),
        ({"RANK": "one", "WORLD_SIZE": "-2"}, "environment", None),
    ],
)
def test_launchers(environment: dict[str, str], launcher: str, rank: int | None) -> None:
    state = distributed_state(environment)
    assert (state.launcher, state.rank, state.initialized) == (launcher, rank, False)
    assert str(state)


def test_one_process_says_so() -> None:
    assert str(distributed_state({})) == "One process: no launcher, no process group."
    assert repr(distributed_state({})) == str(distributed_state({}))


def test_a_group_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_group(monkeypatch)
    state = distributed_state(TORCHRUN)
    assert (state.initialized, state.rank, state.world_size, state.backend) == (True, 1, 2, "nccl")
    assert state.timeout_s == 600
    assert state.groups == (process_group.ProcessGroup("0", "default_pg", "cuda:nccl", (0, 1)),)
    assert state.to_dict()["groups"][0]["ranks"] == [0, 1]
    assert "Process group: nccl, timeout 600 s" in str(state)


def _raises(*_: object) -> Any:
    raise RuntimeError("broken")


@pytest.mark.parametrize(
    "name", ["is_available", "is_initialized", "get_rank", "get_world_size", "get_backend"]
)
def test_nothing_that_fails_gets_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_group(monkeypatch, **{name: _raises})
    assert str(distributed_state(TORCHRUN))
    warn_if_not_destroyed()


def test_a_version_without_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_group(monkeypatch, distributed_c10d=None)
    state = distributed_state(TORCHRUN)
    assert state.initialized
    assert (state.timeout_s, state.groups) == (None, ())


@pytest.mark.parametrize(
    ("device", "count", "duplicate"),
    [(1, 4, False), (0, 4, True), (2, 4, None), (0, 1, None), (1, 2, None)],
)
def test_duplicate_devices_are_inferred(
    device: int, count: int, duplicate: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_torch(monkeypatch, FakeCuda(device, count))
    state = distributed_state(TORCHRUN)
    assert state.duplicate_device is duplicate
    assert bool(state.note) is (duplicate is not False)


def test_cuda_is_never_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(initialized=False)
    plug_torch(monkeypatch, cuda)
    process_group.watch_device()
    state = distributed_state(TORCHRUN)
    assert (state.device, state.duplicate_device, cuda.initialized) == (None, None, False)


def test_set_device_first_is_seen_and_the_original_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = FakeCuda(initialized=False)
    original = cuda.set_device
    plug_torch(monkeypatch, cuda)
    process_group.watch_device()
    process_group.watch_device()
    assert distributed_state(TORCHRUN).device_set_first is None
    cuda.set_device(1)
    assert cuda.set_device == original
    assert distributed_state(TORCHRUN).device_set_first is True
    cuda.set_device(2)
    assert distributed_state(TORCHRUN).device_set_first is True


def test_cuda_used_before_set_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(initialized=False)
    plug_torch(monkeypatch, cuda)
    process_group.watch_device()
    cuda.initialized = True
    assert distributed_state({}).device_set_first is False
    assert distributed_state({}).note == ""  # it is on the default device
    cuda.set_device(1)
    state = distributed_state(TORCHRUN)
    assert state.device_set_first is False
    assert "before torch.cuda.set_device" in state.note


def test_unwatched_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_torch(monkeypatch, FakeCuda())
    assert distributed_state({}).device_set_first is None
    process_group.watch_device()  # too late: CUDA is in use
    assert distributed_state({}).device_set_first is None


def test_a_group_that_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warn_if_not_destroyed() is None
    plug_group(monkeypatch)
    assert "destroy_process_group()" in (warn_if_not_destroyed() or "")


REAL = """
import torch.distributed as dist, vramlens
from vramlens.capture.process_group import distributed_state, warn_if_not_destroyed, watch_device
watch_device()
dist.init_process_group("gloo")
state = distributed_state()
assert (state.initialized, state.rank, state.world_size, state.backend) == (True, 0, 1, "gloo"), state.to_dict()
assert state.timeout_s == 1800 and state.groups[0].ranks == (0,), state.to_dict()
assert state.launcher == "environment" and state.device is None
assert warn_if_not_destroyed()
dist.destroy_process_group()
assert not distributed_state().initialized and warn_if_not_destroyed() is None
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_a_real_group() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": PYTHON_PATH,
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    done = subprocess.run(
        [sys.executable, "-c", REAL], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
