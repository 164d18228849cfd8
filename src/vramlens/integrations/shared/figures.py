"""The figures of a GPU that go to monitoring systems, from the machine or from inside this
program.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vramlens.capture.memory.device_ledger import Ledger, ledger
from vramlens.capture.memory.driver import driver
from vramlens.capture.memory.memory_now import HostMemory, host_memory
from vramlens.capture.torch_api import counters, cuda_in_use
from vramlens.monitor.machine.device_memory import visible_gpus
from vramlens.monitor.machine.inside import InsideDevice
from vramlens.monitor.machine.machine import DeviceNow, MachineNow
from vramlens.monitor.step_pace import seconds_left

_MOST_PROGRAMS = 4096
_Program = tuple[str, int, int]
"""A GPU, and a process with the moment at which it started."""


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
        growth_bytes: the most that a step of one of them leaves behind.
        steps_left, seconds_left: of the one that runs out of memory first: about how many steps
            until then, and how long they take.
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
    growth_bytes: int | None = None
    steps_left: int | None = None
    seconds_left: float | None = None

    @property
    def used_bytes(self) -> int | None:
        """All that is not free, the driver's own part too."""
        if self.total_bytes is None or self.free_bytes is None:
            return None
        return self.total_bytes - self.free_bytes


@dataclass(frozen=True, slots=True)
class AllFigures:
    """All GPUs and the host, and when they were looked at, in microseconds since 1970."""

    devices: tuple[GpuFigures, ...]
    host: HostMemory
    driver_version: str | None
    time_us: int


def figures_of_machine(now: MachineNow) -> AllFigures:
    """All GPUs of the machine and all processes on them."""
    return AllFigures(
        devices=tuple(_of_device(device) for device in now.devices),
        host=now.host,
        driver_version=now.driver_version,
        time_us=now.time_us,
    )


class MachineFigures:
    """The newest look at the machine as figures; its counters never fall."""

    def __init__(self) -> None:
        self._totals = ProgramTotals()
        self._figures: AllFigures | None = None

    def take(self, now: MachineNow) -> None:
        """Keeps a look."""
        self._totals.add(now)
        figures = figures_of_machine(now)
        devices = tuple(self._with_totals(device) for device in figures.devices)
        self._figures = replace(figures, devices=devices)

    def newest(self) -> AllFigures | None:
        """The figures of the last look; None before the first."""
        return self._figures

    def _with_totals(self, device: GpuFigures) -> GpuFigures:
        counted = self._totals.of(device.device)
        return replace(device, retries=counted.retries, failures=counted.failures)


def figures_of_program() -> AllFigures:
    """The GPUs that this program sees, by its own ledger. NCCL is not asked: a rank that hangs
    may hold its locks.
    """
    nvml, _ = driver()
    devices = tuple(
        _of_ledger(ledger(gpu.index, ask_nccl=False)) for gpu in visible_gpus(cuda_in_use())
    )
    return AllFigures(
        devices=devices,
        host=host_memory(),
        driver_version=None if nvml is None else nvml.version(),
        time_us=time.time_ns() // 1000,
    )


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
    return replace(figures, **_outlook(device), **_refusals(programs)) if programs else figures


def _refusals(programs: Sequence[InsideDevice]) -> dict[str, Any]:
    return {
        "retries": sum(memory.retries or 0 for memory in programs),
        "failures": sum(memory.failures or 0 for memory in programs),
    }


def _outlook(device: DeviceNow) -> dict[str, Any]:
    """The growth of the programs on a GPU, and when the first of them runs out of memory."""
    growths, ends = [], []
    for process in device.processes or ():
        memory, inside = process.memory_on(device), process.inside
        if memory is None or inside is None or memory.growth_bytes is None:
            continue
        growths.append(memory.growth_bytes)
        if memory.steps_left is not None:
            ends.append((memory.steps_left, seconds_left(memory.steps_left, inside.step_us)))
    steps, seconds = min(
        ends, key=lambda end: (end[1] is None, end[1] or 0, end[0]), default=(None, None)
    )
    return {
        "growth_bytes": max(growths, default=None),
        "steps_left": steps,
        "seconds_left": seconds,
    }


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
    cuda = cuda_in_use()
    if cuda is None or not gpu_ledger.has_context:
        return figures
    now = counters(cuda, gpu_ledger.device)
    if now is None:
        return figures
    return replace(figures, peak_bytes=now.peak_bytes, retries=now.retries, failures=now.failures)


@dataclass(frozen=True, slots=True)
class Counted:
    """How often PyTorch emptied its cache to go on, and how many requests failed."""

    retries: int = 0
    failures: int = 0

    def plus(self, other: Counted) -> Counted:
        """Both together."""
        return Counted(self.retries + other.retries, self.failures + other.failures)


class ProgramTotals:
    """Adds up what every program on a GPU has counted since this began to look.

    A process is known by its number and its start, so that its last count stays when it ends, and a
    number that is used again is another process.
    """

    def __init__(self) -> None:
        self._programs: dict[_Program, Counted] = {}
        self._ended: dict[str, Counted] = {}

    def add(self, now: MachineNow) -> None:
        """Notes what the programs of a look have counted."""
        for process, device in now.rows():
            memory, inside = process.memory_on(device), process.inside
            if memory is None or inside is None:
                continue
            program = (device.name, inside.pid, inside.started)
            counted = Counted(memory.retries or 0, memory.failures or 0)
            before = self._programs.pop(program, Counted())
            if counted.retries < before.retries or counted.failures < before.failures:
                self._end(device.name, before)  # it has reset its counters
            self._programs[program] = counted
        while len(self._programs) > _MOST_PROGRAMS:
            program = next(iter(self._programs))  # the one that was seen longest ago
            self._end(program[0], self._programs.pop(program))

    def of(self, device: str) -> Counted:
        """What all programs on a GPU have counted so far."""
        totals: Counter[str] = Counter()
        for (name, _pid, _started), counted in self._programs.items():
            if name == device:
                totals["retries"] += counted.retries
                totals["failures"] += counted.failures
        return Counted(totals["retries"], totals["failures"]).plus(self._of_ended(device))

    def _of_ended(self, device: str) -> Counted:
        return self._ended.get(device, Counted())

    def _end(self, device: str, counted: Counted) -> None:
        self._ended[device] = self._of_ended(device).plus(counted)
