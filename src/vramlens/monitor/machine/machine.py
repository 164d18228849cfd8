"""The machine now: every GPU and MIG instance, the processes on them, and the host; nothing here
touches CUDA.

Unlike ``vramlens.memory()`` this shows all GPUs, whatever CUDA_VISIBLE_DEVICES says, in the
driver's order, as nvidia-smi does. Whatever the driver does not tell is None; no call raises.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from vramlens.capture.memory.driver import (
    Driver,
    Gpu,
    GpuMemory,
    GpuProcess,
    driver,
    own_pids,
)
from vramlens.capture.memory.memory_now import HostMemory, host_memory
from vramlens.monitor.machine.device_memory import free_and_total
from vramlens.monitor.machine.host_processes import HostProcess, HostProcesses, rss_bytes
from vramlens.monitor.machine.inside import Inside, InsideDevice, read_insides
from vramlens.monitor.machine.kinds import kinds_of
from vramlens.monitor.machine.process_matching import match

_LOOK_AGAIN_S = 10.0
_SLOW_EVERY_S = 1.0
_LISTED_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class ProcessNow:
    """A process on a GPU.

    Attributes:
        pid: as the driver counts; of a program that the driver does not list, as the program
            counts.
        used_bytes: all that it has on the GPU, as the driver says; None where it does not.
        inside: what the program tells of its allocator, if it runs under vramlens.
        is_inferred: whether the program was matched with the driver's process by elimination, or is
            not listed.
    """

    pid: int
    used_bytes: int | None
    user: str | None = None
    command: str | None = None
    rss_bytes: int | None = None
    inside: Inside | None = None
    is_inferred: bool = False

    def memory_on(self, device: DeviceNow) -> InsideDevice | None:
        """The memory that PyTorch of this program has on the device; None where it does not
        tell.
        """
        return self._memory_on(device.uuid)

    def size_on(self, uuid: str | None) -> int:
        """All that it has on a GPU as the driver says; else what PyTorch has reserved there."""
        if self.used_bytes is not None:
            return self.used_bytes
        memory = self._memory_on(uuid)
        return 0 if memory is None else memory.reserved_bytes or 0

    def _memory_on(self, uuid: str | None) -> InsideDevice | None:
        devices = () if self.inside is None or uuid is None else self.inside.devices
        return next((device for device in devices if device.uuid == uuid), None)


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """One GPU or MIG instance.

    Attributes:
        name: the driver's number, ``0``; ``0:1`` is the second instance of a divided GPU.
        total_bytes, free_bytes: None where the driver gives no figures.
        gpu_percent: of the time in which a kernel ran; None for MIG instances and where it is not
            told.
        processes: None where the driver does not list them.
        notes: what is wrong or not told, in sentences.
    """

    name: str
    product: str | None = None
    uuid: str | None = None
    is_mig: bool = False
    total_bytes: int | None = None
    free_bytes: int | None = None
    driver_bytes: int | None = None
    gpu_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    processes: tuple[ProcessNow, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def used_bytes(self) -> int | None:
        """All that is not free, the driver's own part too."""
        if self.total_bytes is None or self.free_bytes is None:
            return None
        return self.total_bytes - self.free_bytes

    def kinds(self) -> dict[str, int]:
        """Its memory by the ledger's kinds; they sum to the total. Empty where that is
        not known.
        """
        if self.total_bytes is None or self.free_bytes is None:
            return {}
        return kinds_of(
            self.total_bytes,
            self.free_bytes,
            self.driver_bytes,
            [(process.used_bytes, process.memory_on(self)) for process in self.processes or ()],
            is_listed=self.processes is not None,
        )


@dataclass(frozen=True, slots=True)
class MachineNow:
    """All of it at one moment.

    Attributes:
        time_us: microseconds since 1970.
        notes: why there is nothing to see, in sentences.
    """

    time_us: int
    devices: tuple[DeviceNow, ...]
    host: HostMemory
    driver_version: str | None = None
    notes: tuple[str, ...] = ()

    def rows(self) -> list[tuple[ProcessNow, DeviceNow]]:
        """Every process on every device."""
        return [(process, device) for device in self.devices for process in device.processes or ()]


@dataclass(slots=True)
class _Watched:
    """A device and what the driver last said of it."""

    gpu: Gpu
    name: str
    parent: Any
    power_limit_w: float | None
    gpu_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    reserved: int | None = None
    processes: tuple[ProcessNow, ...] | None = None


class Machine:
    """Looks at the machine as often as asked: memory each time, processes, power and how busy it
    is twice a second, temperature and host once.
    """

    def __init__(self, folders: list[str] | None = None) -> None:
        """Prepares.

        Args:
            folders: where programs tell of themselves; by default where this user's do.
        """
        self._folders = folders
        self._watched: list[_Watched] = []
        self._found_at = self._slow_at = self._listed_at = -1e9
        _, self._sees_host_pids = own_pids()
        self._host_processes = HostProcesses(sees_host_pids=self._sees_host_pids)
        self._insides: list[Inside] = []
        self._rss: dict[int, int | None] = {}
        self._host = HostMemory()

    def look(self) -> MachineNow:
        """The machine now."""
        nvml, reason = driver()
        now = time.monotonic()
        is_slow = now - self._slow_at >= _SLOW_EVERY_S
        if is_slow:
            self._slow_at = now
            self._insides = read_insides(self._folders)
            self._host = host_memory()
            self._rss.clear()
        if nvml is None:
            return self._machine_now(notes=(reason,))
        if now - self._found_at >= _LOOK_AGAIN_S:
            self._watched = self._find(nvml)
            self._found_at = now
        is_listed = now - self._listed_at >= _LISTED_EVERY_S or is_slow
        look = _Look(nvml, is_slow, is_listed)
        devices = tuple(self._device(look, watched) for watched in self._watched)
        notes = () if devices else ("The driver shows no GPU here.",)
        machine = self._machine_now(devices, nvml.version(), notes)
        if is_listed:
            self._listed_at = now
            self._host_processes.keep_only({process.pid for process, _ in machine.rows()})
        return machine

    def _machine_now(
        self,
        devices: tuple[DeviceNow, ...] = (),
        driver_version: str | None = None,
        notes: tuple[str, ...] = (),
    ) -> MachineNow:
        return MachineNow(
            time_us=time.time_ns() // 1000,
            devices=devices,
            host=self._host,
            driver_version=driver_version,
            notes=notes,
        )

    def _find(self, nvml: Driver) -> list[_Watched]:
        """All GPUs, divided ones as their instances; figures that were read of them stay."""
        count = nvml.ask("nvmlDeviceGetCount")
        if count is None:  # another library has shut NVML down
            nvml.ask("nvmlInit")
            count = nvml.ask("nvmlDeviceGetCount") or 0
        devices = [device for number in range(count) for device in _devices_of(nvml, number)]
        before = {watched.gpu.uuid: watched for watched in self._watched if watched.gpu.uuid}
        for watched in devices:
            earlier = before.get(watched.gpu.uuid or "")
            if earlier is not None:
                watched.gpu_percent = earlier.gpu_percent
                watched.temperature_c = earlier.temperature_c
                watched.power_w = earlier.power_w
        return devices

    def _device(self, look: _Look, watched: _Watched) -> DeviceNow:
        gpu = watched.gpu
        device = DeviceNow(watched.name, gpu.name, gpu.uuid, gpu.is_mig)
        figures = None if look.is_listed else free_and_total(gpu)
        if figures is None:
            memory = look.nvml.memory(gpu)
            if memory is None:
                soon = time.monotonic() - _LOOK_AGAIN_S + _SLOW_EVERY_S
                self._found_at = min(self._found_at, soon)
                return replace(device, notes=(look.nvml.why_no_memory(gpu),))
            figures = memory.free_bytes, memory.total_bytes
            watched.reserved = memory.reserved_bytes
            watched.processes = self._processes(memory, gpu.uuid)
        look.refresh(watched)
        is_listed = watched.processes is not None
        return replace(
            device,
            total_bytes=figures[1],
            free_bytes=figures[0],
            driver_bytes=watched.reserved,
            gpu_percent=watched.gpu_percent,
            temperature_c=watched.temperature_c,
            power_w=watched.power_w,
            power_limit_w=watched.power_limit_w,
            processes=watched.processes,
            notes=() if is_listed else ("The driver does not list the processes here.",),
        )

    def _processes(self, memory: GpuMemory, uuid: str | None) -> tuple[ProcessNow, ...] | None:
        """The processes on a GPU, the largest first; None where the driver does not list them."""
        listed = memory.processes or ()
        host_processes = {process.pid: self._host_processes.get(process.pid) for process in listed}
        matched, unlisted = match(listed, host_processes, self._insides, uuid)
        rows = [
            self._listed_process(
                process, host_processes[process.pid], *matched.get(process.pid, ())
            )
            for process in listed
        ]
        rows += [
            ProcessNow(
                pid=program.pid,
                used_bytes=None,
                command=program.program,
                rss_bytes=program.rss_bytes,
                inside=program,
                is_inferred=True,
            )
            for program in unlisted
        ]
        if memory.processes is None and not rows:
            return None
        return tuple(sorted(rows, key=lambda row: (-row.size_on(uuid), row.pid)))

    def _listed_process(
        self,
        process: GpuProcess,
        host_process: HostProcess,
        inside: Inside | None = None,
        is_inferred: bool = False,
    ) -> ProcessNow:
        command = host_process.command
        rss = None if host_process.started is None else self._rss_of(process.pid)
        if inside is not None:
            command = command or inside.program
            rss = inside.rss_bytes if rss is None else rss
        return ProcessNow(
            pid=process.pid,
            used_bytes=process.used_bytes,
            user=host_process.user,
            command=command,
            rss_bytes=rss,
            inside=inside,
            is_inferred=is_inferred,
        )

    def _rss_of(self, pid: int) -> int | None:
        if pid not in self._rss:
            self._rss[pid] = rss_bytes(pid)
        return self._rss[pid]


@dataclass(frozen=True, slots=True)
class _Look:
    """One look: the driver, and which of its slower figures are due."""

    nvml: Driver
    is_slow: bool
    is_listed: bool

    def refresh(self, watched: _Watched) -> None:
        """Reads the figures that are due."""
        if self.is_listed:  # the driver itself works these out a few times a second
            if not watched.gpu.is_mig:
                rates = self.nvml.ask("nvmlDeviceGetUtilizationRates", watched.parent)
                watched.gpu_percent = None if rates is None else int(rates.gpu)
            watched.power_w = _watts(self.nvml.ask("nvmlDeviceGetPowerUsage", watched.parent))
        if self.is_slow:
            watched.temperature_c = self.nvml.ask("nvmlDeviceGetTemperature", watched.parent, 0)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _devices_of(nvml: Driver, number: int) -> list[_Watched]:
    """A GPU, or the instances that it is divided into."""
    parent = nvml.ask("nvmlDeviceGetHandleByIndex", number)
    if parent is None:  # fallen off the bus, or not permitted: it stays in sight
        return [_Watched(Gpu(number, None), str(number), None, None)]
    parts = nvml.parts(parent)
    is_divided = parent not in parts
    limit_w = _watts(nvml.ask("nvmlDeviceGetEnforcedPowerLimit", parent))
    return [
        _Watched(
            gpu=nvml.gpu(number, part),
            name=f"{number}:{place}" if is_divided else str(number),
            parent=parent,
            power_limit_w=limit_w,
        )
        for place, part in enumerate(parts)
    ]
