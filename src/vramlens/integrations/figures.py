"""The figures of a GPU that go to monitoring systems, from the machine or from inside this
program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vramlens.capture.memory.device_ledger import Ledger, ledger
from vramlens.capture.memory.driver import driver
from vramlens.capture.memory.memory_now import HostMemory, host_memory
from vramlens.monitor.allocator_counters import counters, loaded_cuda
from vramlens.monitor.machine.device_memory import visible_gpus
from vramlens.monitor.machine.machine import DeviceNow, MachineNow, held_on


@dataclass(frozen=True, slots=True)
class Figures:
    """One GPU; None is what nobody told.

    Attributes:
        device: the driver's number, or CUDA's index in this program.
        kinds: bytes by the ledger's kinds; they sum to ``total_bytes``.
        busy: of the time in which a kernel ran, 0 to 1.
        peak_bytes: PyTorch's peak of allocated bytes, of programs under vramlens or this one.
        retries, failures: how often PyTorch emptied its cache to go on, and failed; of the same
            programs.
    """

    device: str
    uuid: str | None
    product: str | None
    total_bytes: int | None
    free_bytes: int | None
    kinds: Mapping[str, int]
    busy: float | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    peak_bytes: int | None = None
    retries: int | None = None
    failures: int | None = None


@dataclass(frozen=True, slots=True)
class AllFigures:
    """All GPUs and the host."""

    devices: tuple[Figures, ...]
    host: HostMemory
    driver_version: str | None


def figures_of_machine(now: MachineNow) -> AllFigures:
    """All GPUs of the machine and all processes on them."""
    return AllFigures(tuple(_of_device(one) for one in now.devices), now.host, now.driver_version)


def figures_of_program() -> AllFigures:
    """The GPUs that this program sees, by its own ledger. NCCL is not asked: a rank that hangs
    may hold its locks.
    """
    nvml, _ = driver()
    devices = tuple(
        _of_ledger(ledger(gpu.index, ask_nccl=False)) for gpu in visible_gpus(loaded_cuda())
    )
    return AllFigures(devices, host_memory(), None if nvml is None else nvml.version())


def _of_device(device: DeviceNow) -> Figures:
    held = [held_on(process.inside, device.uuid) for process in device.processes or ()]
    inside = [one for one in held if one is not None]
    peaks = [one.peak_bytes for one in inside if one.peak_bytes is not None]
    return Figures(
        device.name,
        device.uuid,
        device.product,
        device.total_bytes,
        device.free_bytes,
        device.kinds(),
        None if device.gpu_percent is None else device.gpu_percent / 100,
        device.temperature_c,
        device.power_w,
        max(peaks, default=None),
        sum(one.retries or 0 for one in inside) if inside else None,
        sum(one.failures or 0 for one in inside) if inside else None,
    )


def _of_ledger(found: Ledger) -> Figures:
    cuda = loaded_cuda()
    now = counters(cuda, found.device) if cuda is not None and found.has_context else None
    kinds: dict[str, int] = {}
    for row in found.rows:
        kinds[row.kind] = kinds.get(row.kind, 0) + row.bytes
    return Figures(
        str(found.device),
        found.uuid,
        found.name,
        found.total_bytes,
        found.bytes_of("free"),
        kinds,
        peak_bytes=None if now is None else now.peak_bytes,
        retries=None if now is None else now.retries,
        failures=None if now is None else now.failures,
    )
