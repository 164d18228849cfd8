"""A pynvml that is none: it answers from written-down shapes of real machines, and can fail as the
real one does.

The names and fields are those of nvidia-ml-py 13 (a test compares them). ``SHAPES`` holds machines
as they are met: divided GPUs, MPS, containers, missing permissions, several GPUs, none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

GIB, MIB = 1 << 30, 1 << 20
NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, GPU_IS_LOST, UNINITIALIZED = (
    "Not Supported",
    "Insufficient Permissions",
    "Not Found",
    "GPU is lost",
    "Uninitialized",
)


class NVMLError(Exception):
    """As pynvml raises it."""


@dataclass
class Gpu:
    """One GPU or one instance; ``refused`` maps names of calls to why they fail."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total: int = 81559 * MIB
    free: int = 81559 * MIB - 640 * MIB
    reserved: int = 640 * MIB
    compute: list[tuple[int, int | None]] = field(default_factory=list)
    graphics: list[tuple[int, int | None]] = field(default_factory=list)
    mps: list[tuple[int, int | None]] = field(default_factory=list)
    busy: int = 0
    temperature: int = 31
    power: int = 70_000
    limit: int = 700_000
    instances: list[Gpu] = field(default_factory=list)
    is_instance: bool = False
    refused: dict[str, str] = field(default_factory=dict)
    pci: str = ""

    def use(self, pid: int, size: int | None, *, kind: str = "compute") -> Gpu:
        """Adds a process; its memory is no longer free."""
        getattr(self, kind).append((pid, size))
        self.free -= size or 0
        return self


class FakeNvml(ModuleType):
    """The module; ``missing`` names are absent (of memory: "v2"), ``calls`` and ``inits`` count.

    Names of GPUs are bytes where ``encodes``, as they were in older releases.
    """

    nvmlMemory_v2 = 0x02000028  # noqa: N815

    def __init__(self, *gpus: Gpu) -> None:
        super().__init__("pynvml")
        self.gpus, self.up, self.calls, self.inits, self.encodes = list(gpus), False, 0, 0, False
        self.missing: set[str] = set()
        self.refused: dict[str, str] = {}

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return super().__getattribute__(name)
        if name in self.missing:
            raise AttributeError(name)
        value = super().__getattribute__(name)
        if not callable(value):
            return value

        def call(*args: Any) -> Any:
            self.calls += 1
            if name != "nvmlInit" and not self.up:
                raise NVMLError(UNINITIALIZED)
            why = self.refused.get(name)
            if why is None and args and isinstance(args[0], Gpu):
                why = args[0].refused.get(name) or args[0].refused.get("all")
            if why is not None:
                raise NVMLError(why)
            return value(*args)

        return call

    def nvmlInit(self) -> None:  # noqa: N802
        self.inits, self.up = self.inits + 1, True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.up = False

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        gpu = self.gpus[index]
        if "open" in gpu.refused:
            raise NVMLError(gpu.refused["open"])
        return gpu

    def _where(self, fits: Callable[[Gpu], bool]) -> Gpu:
        for gpu in self.gpus:
            for one in (gpu, *gpu.instances):
                if fits(one):
                    return one
        raise NVMLError(NOT_FOUND)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:  # noqa: N802
        return self._where(lambda gpu: gpu.uuid == uuid)

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> Gpu:  # noqa: N802
        return self._where(lambda gpu: bool(gpu.pci) and gpu.pci == bus)

    def nvmlDeviceGetName(self, handle: Gpu) -> str | bytes:  # noqa: N802
        return handle.name.encode() if self.encodes else handle.name

    def nvmlDeviceGetUUID(self, handle: Gpu) -> str:  # noqa: N802
        return handle.uuid

    def nvmlDeviceGetMigMode(self, handle: Gpu) -> list[int]:  # noqa: N802
        return [int(bool(handle.instances))] * 2

    def nvmlDeviceIsMigDeviceHandle(self, handle: Gpu) -> Any:  # noqa: N802
        return SimpleNamespace(value=int(handle.is_instance))

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Gpu) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Gpu, index: int) -> Gpu:  # noqa: N802
        if index >= len(handle.instances):
            raise NVMLError(NOT_FOUND)
        return handle.instances[index]

    def nvmlDeviceGetMemoryInfo(self, handle: Gpu, version: int | None = None) -> Any:  # noqa: N802
        info = SimpleNamespace(
            total=handle.total, free=handle.free, used=handle.total - handle.free
        )
        if version is not None:
            if "v2" in self.missing:
                raise NVMLError("Function Not Found")
            info.reserved = handle.reserved
        return info

    def nvmlDeviceGetUtilizationRates(self, handle: Gpu) -> Any:  # noqa: N802
        if handle.is_instance:
            raise NVMLError(NOT_SUPPORTED)
        return SimpleNamespace(gpu=handle.busy, memory=handle.busy // 2)

    def nvmlDeviceGetTemperature(self, handle: Gpu, sensor: int) -> int:  # noqa: N802
        if handle.is_instance:
            raise NVMLError(NOT_SUPPORTED)
        return handle.temperature

    def nvmlDeviceGetPowerUsage(self, handle: Gpu) -> int:  # noqa: N802
        return handle.power

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Gpu) -> int:  # noqa: N802
        return handle.limit

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Gpu) -> list[Any]:  # noqa: N802
        return _listed(handle.compute)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Gpu) -> list[Any]:  # noqa: N802
        return _listed(handle.compute)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Gpu) -> list[Any]:  # noqa: N802
        return _listed(handle.graphics)

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: Gpu) -> list[Any]:  # noqa: N802
        return _listed(handle.mps)


def _listed(processes: list[tuple[int, int | None]]) -> list[Any]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes]


def uuid_of(number: int) -> str:
    """A GPU's name as the driver writes it."""
    return f"GPU-{number:08x}-0000-0000-0000-{number:012x}"


def several(pid: int = 999_001, count: int = 8) -> FakeNvml:
    """Eight GPUs: one process on each of the first six, the last two free."""
    gpus = []
    for number in range(count):
        gpu = Gpu(
            uuid_of(number),
            busy=90 + number,
            temperature=60 + number,
            power=500_000 + 1000 * number,
        )
        if number < count - 2:
            gpu.use(pid + number, (20 + 6 * number) * GIB)
        else:
            gpu.busy, gpu.temperature, gpu.power = 0, 31, 70_000
        gpus.append(gpu)
    return FakeNvml(*gpus)


def divided(pid: int = 999_001) -> FakeNvml:
    """A GPU divided in two instances of 40 GB, of which one is used; an instance has no
    utilisation of its own.
    """
    parts = [
        Gpu(
            f"MIG-{number:08x}",
            "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
            40448 * MIB,
            40448 * MIB - 62 * MIB,
            62 * MIB,
        )
        for number in (1, 2)
    ]
    for part in parts:
        part.is_instance = True
    parts[0].use(pid, 12 * GIB)
    whole = Gpu(uuid_of(0), temperature=44, power=210_000, instances=parts)
    whole.refused["nvmlDeviceGetUtilizationRates"] = NOT_SUPPORTED
    return FakeNvml(whole)


def shared_by_mps(server: int = 999_001, clients: tuple[int, ...] = (999_002, 999_003)) -> FakeNvml:
    """Two clients of the multi-process service: the server is a compute process, the clients are
    in MPS' own list.
    """
    gpu = Gpu(uuid_of(0), busy=100).use(server, 30 * MIB)
    for client in clients:
        gpu.use(client, 5 * GIB, kind="mps")
    return FakeNvml(gpu)


def in_container(host_pid: int = 999_001) -> FakeNvml:
    """A container: the driver names processes by the host's numbers, which mean nothing here."""
    return FakeNvml(Gpu(uuid_of(0), busy=55).use(host_pid, 9 * GIB))


def without_sizes(*pids: int) -> FakeNvml:
    """The driver lists processes without the size of each, as under WDDM and in some containers."""
    gpu = Gpu(uuid_of(0), busy=12)
    gpu.free -= 7 * GIB
    gpu.compute = [(pid, None) for pid in pids or (999_001,)]
    return FakeNvml(gpu)


def without_permission() -> FakeNvml:
    """Memory is told, processes and power are not."""
    gpu = Gpu(uuid_of(0), busy=77)
    gpu.free -= 11 * GIB
    for name in ("Compute", "Graphics", "MPSCompute"):
        for suffix in ("", "_v2", "_v3"):
            gpu.refused[f"nvmlDeviceGet{name}RunningProcesses{suffix}"] = NO_PERMISSION
    gpu.refused["nvmlDeviceGetPowerUsage"] = NO_PERMISSION
    return FakeNvml(gpu)


def half_lost() -> FakeNvml:
    """Two GPUs, of which the second has fallen off the bus while it was watched."""
    lost = Gpu(uuid_of(1))
    lost.refused["all"] = GPU_IS_LOST
    return FakeNvml(Gpu(uuid_of(0), busy=3).use(999_001, GIB), lost)


def none() -> FakeNvml:
    """A driver without a GPU."""
    return FakeNvml()


SHAPES = {
    "several": several,
    "divided": divided,
    "mps": shared_by_mps,
    "container": in_container,
    "without sizes": without_sizes,
    "without permission": without_permission,
    "half lost": half_lost,
    "none": none,
}


def plug_in(nvml: FakeNvml) -> FakeNvml:
    """Has vramlens ask this one in this process."""
    from vramlens.capture.memory import driver

    sys.modules["pynvml"] = nvml
    driver.forget()
    return nvml
