"""The figures of a GPU that go to monitoring systems, from the machine or from inside this
program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vramlens.capture.memory.device_ledger import Ledger, ledger
from vramlens.capture.memory.driver import driver
from vramlens.capture.memory.memory_now import HostMemory, host_memory
from vramlens.monitor.allocator_counters import counters, loaded_cuda
from vramlens.monitor.machine.device_memory import visible_gpus
from vramlens.monitor.machine.machine import DeviceNow, MachineNow


@dataclass(frozen=True, slots=True)
class GpuFigures:
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

    devices: tuple[GpuFigures, ...]
    host: HostMemory
    driver_version: str | None


def figures_of_machine(now: MachineNow) -> AllFigures:
    """All GPUs of the machine and all processes on them."""
    return AllFigures(
        tuple(_of_device(device) for device in now.devices), now.host, now.driver_version
    )


def figures_of_program() -> AllFigures:
    """The GPUs that this program sees, by its own ledger. NCCL is not asked: a rank that hangs
    may hold its locks.
    """
    nvml, _ = driver()
    devices = tuple(
        _of_ledger(ledger(gpu.index, ask_nccl=False)) for gpu in visible_gpus(loaded_cuda())
    )
    return AllFigures(devices, host_memory(), None if nvml is None else nvml.version())


def _of_device(device: DeviceNow) -> GpuFigures:
    memories = [process.memory_on(device) for process in device.processes or ()]
    programs = [memory for memory in memories if memory is not None]
    peaks = [memory.peak_bytes for memory in programs if memory.peak_bytes is not None]
    percent = device.gpu_percent
    figures = GpuFigures(
        device=device.name,
        uuid=device.uuid,
        product=device.product,
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        kinds=device.kinds(),
        busy=None if percent is None else percent / 100,
        temperature_c=device.temperature_c,
        power_w=device.power_w,
        peak_bytes=max(peaks, default=None),
    )
    if not programs:
        return figures
    return replace(
        figures,
        retries=sum(memory.retries or 0 for memory in programs),
        failures=sum(memory.failures or 0 for memory in programs),
    )


def _of_ledger(gpu_ledger: Ledger) -> GpuFigures:
    kinds: Counter[str] = Counter()
    for row in gpu_ledger.rows:
        kinds[row.kind] += row.bytes
    figures = GpuFigures(
        device=str(gpu_ledger.device),
        uuid=gpu_ledger.uuid,
        product=gpu_ledger.name,
        total_bytes=gpu_ledger.total_bytes,
        free_bytes=gpu_ledger.bytes_of("free"),
        kinds=kinds,
    )
    cuda = loaded_cuda()
    if cuda is None or not gpu_ledger.has_context:
        return figures
    now = counters(cuda, gpu_ledger.device)
    if now is None:
        return figures
    return replace(figures, peak_bytes=now.peak_bytes, retries=now.retries, failures=now.failures)
