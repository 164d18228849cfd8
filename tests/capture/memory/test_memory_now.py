"""``memory()``: the table that is printed, its figures, and the host's memory."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capture.memory.test_device_ledger import FakeTorch, a10, install, sees_host_pids, stats
from capture.memory.test_driver import FakeGpu, Install, nvml
from vramlens.capture.memory import memory_now as module
from vramlens.capture.memory.driver import forget
from vramlens.capture.memory.memory_now import (
    HostMemory,
    MemoryNow,
    host_memory,
    is_killed_as_group,
    memory,
)
from vramlens.units import GIB, MIB

__all__ = ["install", "nvml", "sees_host_pids"]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the files of /proc and /sys say; what is not in it is not there."""
    texts: dict[str, str] = {}
    monkeypatch.setattr(module, "_text", lambda path: texts.get(path, ""))
    return texts


def test_one_gpu(nvml: Install, install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(a10())
    install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
    monkeypatch.setattr(
        module,
        "host_memory",
        lambda: HostMemory(3 * GIB, 4 * GIB, 64 * GIB, 50 * GIB, "cgroup", 1, GIB),
    )
    now = memory(["train.py:12  2.00 GiB", "train.py:30  1.00 GiB"])
    assert (
        str(now)
        == repr(now)
        == """\
GPU 0 (NVIDIA A10): 5.98 GiB of 24.00 GiB used, 3.00 GiB live, 1.00 GiB cached, 18.02 GiB free
  400.00 MiB  driver and firmware
    3.00 GiB  in use by PyTorch
    1.00 GiB  cached by PyTorch (only PyTorch can reuse it)
  500.00 MiB  this process outside PyTorch: CUDA context, loaded kernels, cuBLAS and cuDNN handles, NCCL
    1.00 GiB  other processes: 70 (Xorg) 1.00 GiB
   18.02 GiB  free
  100.00 MiB  not known: used by the driver itself or by a process that it does not list (in another container, or already ended)
train.py:12  2.00 GiB
train.py:30  1.00 GiB
Host: 3.00 GiB in this process (peak 4.00 GiB), 1.00 GiB pinned by PyTorch, 50.00 GiB of 64.00 GiB available in this container"""
    )
    figures = json.loads(json.dumps(now.to_dict()))
    assert (
        sum(row["bytes"] for row in figures["gpus"][0]["rows"])
        == figures["gpus"][0]["total_bytes"]
        == 24 * GIB
    )
    assert figures["host"]["rss_bytes"] == 3 * GIB
    assert figures["top_lines"] == ["train.py:12  2.00 GiB", "train.py:30  1.00 GiB"]


def test_several_gpus(nvml: Install, install: Any) -> None:
    """Rows for those that this process uses; one line for the others."""
    nvml(a10(), FakeGpu("GPU-b", compute=[(71, 2 * GIB)], free=20 * GIB))
    install(FakeTorch("b", "a", used={1: stats(3 * GIB, 4 * GIB)}))
    lines = str(memory()).splitlines()
    assert (
        lines[0]
        == "GPU 0 (NVIDIA A10): 4.00 GiB of 24.00 GiB used, none by this process, 20.00 GiB free"
    )
    assert lines[1].startswith("GPU 1 (NVIDIA A10): 5.98 GiB")
    assert lines[-1].startswith("Host: ")
    assert len(memory().gpus) == 2


def test_what_is_inferred_says_so(nvml: Install, install: Any) -> None:
    nvml(a10(compute=[], graphics=[]))
    install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
    assert (
        "1.59 GiB  this process outside PyTorch, and other processes: the driver lists none here (inferred)"
        in str(memory())
    )


def test_a_gpu_that_is_not_used_here(nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(a10(compute=[]))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    text = str(memory())
    assert "none by this process" in text.splitlines()[0]
    assert "other processes: 70 (Xorg) 1.00 GiB" in text
    assert "PyTorch is not imported in this process, so none of this memory belongs to it." in text


def test_without_the_driver(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    forget()
    install(FakeTorch("a", used={0: stats(3 * GIB, 4 * GIB)}))
    lines = str(memory()).splitlines()
    forget()
    assert lines[0] == "GPU 0 (NVIDIA A10): size 23.00 GiB, 3.00 GiB live, 1.00 GiB cached"
    assert (
        "  The NVIDIA driver cannot be queried without pynvml (pip install nvidia-ml-py)." in lines
    )


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    forget()
    now = memory()
    forget()
    assert now.gpus == ()
    first, second = str(now).splitlines()
    assert (
        first
        == "No GPU here: the NVIDIA driver cannot be queried without pynvml (pip install nvidia-ml-py)."
    )
    assert second.startswith("Host: ")


def test_no_visible_gpu(nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(a10())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert memory().notes == ("No GPU is visible to this process: CUDA_VISIBLE_DEVICES is ''.",)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    nvml()
    assert memory().notes == ("No GPU here: the driver shows none.",)


def test_amd_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = FakeTorch(initialized=False)
    torch.version.hip = "6.4"
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert memory().notes == (
        "No GPU visible yet: an AMD or Intel GPU appears once the program uses it.",
    )


def test_nothing_known_is_said() -> None:
    assert str(MemoryNow((), HostMemory())) == "Host: unknown"


def test_the_real_host() -> None:
    host = host_memory()
    assert host.rss_bytes is not None
    assert host.peak_rss_bytes is not None
    assert MIB < host.rss_bytes <= host.peak_rss_bytes
    assert host.total_bytes is not None
    assert host.available_bytes is not None
    assert 0 < host.available_bytes <= host.total_bytes


def test_psutil_where_there_is_no_proc(files: dict[str, str]) -> None:
    psutil = pytest.importorskip("psutil")
    host = host_memory()
    assert host.total_bytes == psutil.virtual_memory().total
    assert host.rss_bytes is not None
    assert host.peak_rss_bytes is not None
    assert MIB < host.rss_bytes <= host.peak_rss_bytes * 1.1


def test_neither_proc_nor_psutil(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert host_memory() == HostMemory()


MEMINFO = (
    f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\nMemAvailable: {40 << 20} kB\nHugePages_Total: 0\n"
)


def test_a_limit_of_version_2(files: dict[str, str]) -> None:
    """The narrowest of all parents counts; cached files are no memory that is gone."""
    root = "/sys/fs/cgroup"
    files |= {
        "/proc/meminfo": MEMINFO,
        "/proc/self/cgroup": "0::/pods/mine\n",
        f"{root}/pods/mine/memory.max": "max\n",
        f"{root}/pods/memory.max": f"{16 * GIB}\n",
        f"{root}/pods/memory.current": f"{10 * GIB}\n",
        f"{root}/pods/memory.stat": f"anon 5\ninactive_file {4 * GIB}\nactive_file 3\n",
    }
    host = host_memory()
    assert (host.total_bytes, host.available_bytes, host.limit) == (16 * GIB, 10 * GIB, "cgroup")


def test_a_limit_of_version_1_inside_a_container(files: dict[str, str]) -> None:
    """The path is the host's, and only the root of the mount is there."""
    root = "/sys/fs/cgroup/memory"
    files |= {
        "/proc/meminfo": MEMINFO,
        "/proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n",
        f"{root}/memory.limit_in_bytes": f"{8 * GIB}\n",
        f"{root}/memory.usage_in_bytes": f"{9 * GIB}\n",
    }
    host = host_memory()
    assert (host.total_bytes, host.available_bytes, host.limit) == (8 * GIB, 0, "cgroup")


@pytest.mark.parametrize("text", ["9223372036854771712", "max", "", str(65 * GIB)])
def test_no_limit(files: dict[str, str], text: str) -> None:
    files |= {
        "/proc/meminfo": MEMINFO,
        "/proc/self/cgroup": "4:memory:/\n0::/\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": text,
        "/sys/fs/cgroup/memory.max": text,
    }
    host = host_memory()
    assert (host.total_bytes, host.available_bytes, host.limit) == (64 * GIB, 40 * GIB, "machine")


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        ({"active_bytes": {"current": 3}, "allocated_bytes": {"current": 4}}, (3, 4)),
        ({"allocated_bytes": {"current": 3}, "reserved_bytes": {"current": 4}}, (3, 4)),
        ({}, (None, None)),
        ({"num_host_alloc": 1}, (None, None)),
    ],
)
def test_pinned_memory(
    install: Any, counted: dict[str, Any], expected: tuple[int | None, int | None]
) -> None:
    torch = install(FakeTorch("a"))
    torch.cuda.host_memory_stats_as_nested_dict = lambda: counted
    host = host_memory()
    assert (host.pinned_bytes, host.pinned_reserved_bytes) == expected


def test_pinned_memory_of_a_torch_that_does_not_count(install: Any) -> None:
    torch = install(FakeTorch("a"))
    del torch.cuda.host_memory_stats_as_nested_dict
    assert host_memory().pinned_bytes is None
    torch.cuda = SimpleNamespace()
    assert host_memory().pinned_bytes is None


def test_real_torch_is_not_initialised_by_asking() -> None:
    torch = pytest.importorskip("torch")
    was = torch.cuda.is_initialized()
    assert isinstance(memory(), MemoryNow)
    assert torch.cuda.is_initialized() == was


def test_importing_costs_nothing() -> None:
    """Neither torch nor pynvml nor psutil is imported with the module."""
    code = "import sys, vramlens.capture.memory.memory_now; assert not {'torch', 'pynvml', 'psutil', 'numpy'} & set(sys.modules)"
    path = str(Path(module.__file__).parents[3])
    assert (
        os.spawnve(
            os.P_WAIT,
            sys.executable,
            [sys.executable, "-c", code],
            {**os.environ, "PYTHONPATH": path},
        )
        == 0
    )


def test_a_group_whose_processes_die_together(files: dict[str, str]) -> None:
    files |= {"/proc/self/cgroup": "0::/pods/mine\n", "/sys/fs/cgroup/pods/memory.oom.group": "0\n"}
    assert not is_killed_as_group()
    files["/sys/fs/cgroup/pods/memory.oom.group"] = "1\n"
    assert is_killed_as_group()
