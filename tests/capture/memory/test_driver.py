"""The driver, faked: which GPU is which, what is said of it, and that nothing raises."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from support.fake_nvml import NO_PERMISSION, NOT_SUPPORTED, UNINITIALIZED, FakeNvml, Gpu
from vramlens.capture.memory import driver as module
from vramlens.capture.memory.driver import GpuProcess, driver, own_pids
from vramlens.units import GIB, MIB


@dataclass
class FakeGpu(Gpu):
    """A GPU that cannot be divided."""

    name: str = "NVIDIA A10"
    total: int = 24 * GIB
    free: int = 20 * GIB
    reserved: int = 400 * MIB
    refused: dict[str, str] = field(default_factory=lambda: {"nvmlDeviceGetMigMode": NOT_SUPPORTED})
    pci: str = "00000000:1B:00.0"


class FakeCuda:
    """``torch.cuda``, initialised: its devices by what their properties say."""

    def __init__(self, *properties: Any) -> None:
        self.properties = properties

    def device_count(self) -> int:
        return len(self.properties)

    def get_device_properties(self, index: int) -> Any:
        return self.properties[index]


Install = Callable[..., FakeNvml]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a fake NVML with these GPUs in place."""
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    module.forget()

    def install(*gpus: FakeGpu) -> FakeNvml:
        fake = FakeNvml(*gpus)
        fake.encodes = True
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        module.forget()
        return fake

    yield install
    module.forget()


def uuids(cuda: Any = None) -> list[str | None]:
    found, reason = driver()
    assert found is not None, reason
    assert [gpu.index for gpu in found.gpus(cuda)] == list(range(len(found.gpus(cuda))))
    return [gpu.uuid for gpu in found.gpus(cuda)]


A, B, C = (
    FakeGpu(f"GPU-{letter * 8}-0000", pci=f"00000000:{bus}:00.0")
    for letter, bus in zip("abc", ("1B", "3B", "5E"), strict=True)
)


def test_the_names_are_those_of_the_real_package() -> None:
    real = pytest.importorskip("pynvml")
    absent = [
        name for name in vars(FakeNvml) if name.startswith("nvml") and not hasattr(real, name)
    ]
    assert not absent
    assert real.nvmlMemory_v2 == FakeNvml.nvmlMemory_v2
    # The fields that are read; version 1 has no ``reserved``.
    fields = {name for name, _ in real.c_nvmlMemory_v2_t._fields_}
    assert {"total", "free", "reserved"} <= fields
    assert "reserved" not in {name for name, _ in real.c_nvmlMemory_t._fields_}
    assert {"pid", "usedGpuMemory"} <= {name for name, _ in real.c_nvmlProcessInfo_v3_t._fields_}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [A, B, C]),
        ("", []),
        ("-1", []),
        ("2,0", [C, A]),
        ("1, 2", [B, C]),
        ("1gpu,2", [B, C]),  # CUDA reads numbers as strtoul does
        ("0,0", []),
        ("0,9,1", [A]),
        ("0,x,1", [A]),
        ("²", []),
        (f"{C.uuid},{A.uuid}", [C, A]),
        ("GPU-b", [B]),
        ("GPU-", []),  # fits more than one
        (f"{A.uuid},GPU-nothing,{B.uuid}", [A]),
        (f"{A.uuid},{A.uuid}", []),
    ],
)
def test_without_cuda_the_environment_numbers(
    nvml: Install, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[FakeGpu]
) -> None:
    nvml(A, B, C)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert uuids() == [gpu.uuid for gpu in expected]


def test_cuda_numbers_by_uuid_never_by_index(
    nvml: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml(A, B, C)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")  # stale: not what CUDA was initialised with
    bare = [gpu.uuid.removeprefix("GPU-") for gpu in (C, A)]
    assert uuids(FakeCuda(*(SimpleNamespace(uuid=uuid, name="x") for uuid in bare))) == [
        C.uuid,
        A.uuid,
    ]


def test_by_pci_address_where_there_is_no_uuid(nvml: Install) -> None:
    nvml(A, B, C)
    assert uuids(FakeCuda(SimpleNamespace(pci_domain_id=0, pci_bus_id=0x5E, pci_device_id=0))) == [
        C.uuid
    ]


def test_by_the_environment_where_cuda_names_nothing(
    nvml: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml(A, B, C)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert uuids(FakeCuda(SimpleNamespace(name="x"), SimpleNamespace(name="x"))) == [C.uuid, B.uuid]


def test_a_gpu_that_nvml_does_not_know_is_not_guessed(nvml: Install) -> None:
    nvml(A)
    found, _ = driver()
    assert found is not None
    (gpu,) = found.gpus(FakeCuda(SimpleNamespace(uuid="dddd", name="NVIDIA D")))
    assert (gpu.uuid, gpu.name, gpu.handle, found.memory(gpu)) == (None, "NVIDIA D", None, None)
    assert gpu.note


def test_unlike_gpus_may_be_ordered_otherwise(
    nvml: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml(A, FakeGpu("GPU-fast", name="NVIDIA H100"))
    found, _ = driver()
    assert found is not None
    assert all("fastest" in gpu.note for gpu in found.gpus())
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert not any(gpu.note for gpu in found.gpus())


def divided(*letters: str) -> FakeGpu:
    parts = [
        FakeGpu(f"MIG-{x}", total=5 * GIB, free=5 * GIB, reserved=0, is_instance=True, pci="")
        for x in letters
    ]
    return FakeGpu("GPU-h", name="NVIDIA H100", instances=parts, refused={})


def test_instances_by_name(nvml: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(divided("one", "two"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-two")
    assert uuids() == ["MIG-two"]
    assert uuids(FakeCuda(SimpleNamespace(uuid="h"))) == [
        "MIG-two"
    ]  # CUDA may give the whole GPU's uuid
    found, _ = driver()
    assert found is not None
    (gpu,) = found.gpus()
    memory = found.memory(gpu)
    assert gpu.is_mig
    assert memory is not None
    assert memory.total_bytes == 5 * GIB


def test_instances_without_a_name(nvml: Install) -> None:
    nvml(divided("one"))
    assert uuids() == ["MIG-one"]
    assert uuids(FakeCuda(SimpleNamespace(uuid="h"))) == ["MIG-one"]
    assert uuids(FakeCuda(SimpleNamespace(uuid="one"))) == ["MIG-one"]
    nvml(divided("one", "two"))
    assert uuids() == ["MIG-one", "MIG-two"]
    assert uuids(FakeCuda(SimpleNamespace(uuid="h"))) == [None]  # which of the two cannot be told


def test_one_row_a_process(nvml: Install) -> None:
    gpu = FakeGpu(
        "GPU-a",
        compute=[(7, 3 * GIB), (9, None), (8, 0)],
        graphics=[(7, GIB), (5, 30 * GIB)],
        mps=[(9, GIB)],
    )
    nvml(gpu)
    found, _ = driver()
    assert found is not None
    memory = found.memory(found.gpus()[0])
    assert memory is not None
    # 5: more than the device has; 8: nothing at all. Neither is a figure.
    assert memory.processes == (
        GpuProcess(5, None), GpuProcess(7, 3 * GIB), GpuProcess(8, None), GpuProcess(9, GIB)
    )  # fmt: skip
    assert (memory.total_bytes, memory.free_bytes, memory.reserved_bytes) == (
        24 * GIB,
        20 * GIB,
        400 * MIB,
    )


@pytest.mark.parametrize("missing", ["nvmlMemory_v2", "v2"])
def test_an_old_driver_does_not_tell_its_own_part(nvml: Install, missing: str) -> None:
    nvml(A).missing.add(missing)
    found, _ = driver()
    assert found is not None
    memory = found.memory(found.gpus()[0])
    assert memory is not None
    assert memory.reserved_bytes is None


def test_older_lists_and_refused_lists(nvml: Install) -> None:
    fake = nvml(FakeGpu("GPU-a", compute=[(7, GIB)]))
    found, _ = driver()
    assert found is not None
    gpu = found.gpus()[0]
    fake.missing |= {
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
    }
    memory = found.memory(gpu)
    assert memory is not None
    assert memory.processes == (GpuProcess(7, GIB),)
    fake.refused["nvmlDeviceGetComputeRunningProcesses_v2"] = NO_PERMISSION
    memory = found.memory(gpu)
    assert memory is not None
    assert memory.processes is None


def test_nonsense_is_no_figure(nvml: Install) -> None:
    nvml(FakeGpu("GPU-a", total=GIB, free=2 * GIB))
    found, _ = driver()
    assert found is not None
    assert found.memory(found.gpus()[0]) is None


def test_nvml_shut_down_by_somebody_else(nvml: Install) -> None:
    fake = nvml(A)
    found, _ = driver()
    assert found is not None
    (gpu,) = found.gpus()
    fake.up = False
    assert found.memory(gpu) is not None
    assert fake.inits == 2
    fake.refused["nvmlDeviceGetMemoryInfo"] = NO_PERMISSION
    assert found.memory(gpu) is None
    assert fake.inits == 2


def test_no_pynvml_and_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    module.forget()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found, reason = driver()
    assert found is None
    assert (
        reason == "The NVIDIA driver cannot be queried without pynvml (pip install nvidia-ml-py)."
    )
    fake = FakeNvml()
    fake.refused["nvmlInit"] = UNINITIALIZED
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    module.forget()
    found, reason = driver()
    assert found is None
    assert reason == "The NVIDIA driver does not answer (Uninitialized)."
    module.forget()


def test_a_driver_that_is_not_installed_is_no_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pynvml = pytest.importorskip("pynvml")
    fake = FakeNvml()

    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(fake, "nvmlInit", refuse)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    module.forget()
    _, reason = driver()
    assert reason == "No NVIDIA driver was found (NVML Shared Library Not Found)."
    module.forget()


def test_the_version(nvml: Install) -> None:
    nvml(A)
    found, _ = driver()
    assert found is not None
    assert found.version() == "580.159.04"


def test_every_process_and_thread_has_the_same_driver(
    nvml: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = nvml(A, B)
    answers: list[list[str | None]] = []
    threads = [threading.Thread(target=lambda: answers.append(uuids())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[A.uuid, B.uuid]] * 8
    before = fake.inits
    monkeypatch.setattr(module.os, "getpid", lambda: -1)  # after a fork
    assert uuids() == [A.uuid, B.uuid]
    assert fake.inits == before + 1


def test_it_is_shut_down_where_it_was_not_used_before(nvml: Install) -> None:
    fake = nvml(A)
    with module.shut_down_afterwards():
        assert uuids() == [A.uuid]
        assert fake.up
    assert not fake.up
    assert uuids() == [A.uuid]  # asked again, it is begun again
    assert fake.inits == 2


def test_who_used_it_before_keeps_it(nvml: Install) -> None:
    fake = nvml(A)
    assert uuids() == [A.uuid]
    with module.shut_down_afterwards():
        assert uuids() == [A.uuid]
    assert fake.up
    assert fake.inits == 1


def test_what_was_never_asked_is_not_shut_down(nvml: Install) -> None:
    fake = nvml(A)
    fake.up = True  # another library has begun it
    with module.shut_down_afterwards():
        pass
    assert fake.up


def test_this_process() -> None:
    pids, _ = own_pids()
    assert pids[-1] == os.getpid()
    assert module.process_name(os.getpid())
    assert module.process_name(2**30) is None
