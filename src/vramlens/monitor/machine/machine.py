"""The machine now: every GPU and MIG instance, the processes on them, and the host; nothing here
touches CUDA.

Unlike ``vramlens.memory()`` this shows all GPUs, whatever CUDA_VISIBLE_DEVICES says, in the
driver's order, as nvidia-smi does. Whatever the driver does not tell is None; no call raises.
"""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass, replace
from typing import Any

from vramlens.capture.memory.driver import Driver, Gpu, GpuMemory, driver, own_pids
from vramlens.capture.memory.memory_now import HostMemory, host_memory
from vramlens.monitor.machine.device_memory import free_and_total
from vramlens.monitor.machine.inside import Inside, read_insides
from vramlens.monitor.machine.kinds import kinds_of
from vramlens.monitor.machine.people import People, rss_bytes
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

    def held(self, device: DeviceNow) -> Any:
        """What PyTorch of this program holds on the device; None where it does not tell."""
        return held_on(self.inside, device.uuid)


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
        return (
            None
            if self.total_bytes is None or self.free_bytes is None
            else self.total_bytes - self.free_bytes
        )

    def kinds(self) -> dict[str, int]:
        """Where its memory is, by the ledger's kinds; they sum to the total. Empty where that is
        not known.
        """
        if self.total_bytes is None or self.free_bytes is None:
            return {}
        held = [(process.used_bytes, process.held(self)) for process in self.processes or ()]
        return kinds_of(
            self.total_bytes, self.free_bytes, self.driver_bytes, held, self.processes is not None
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


def held_on(inside: Inside | None, uuid: str | None) -> Any:
    """What a program tells of one GPU; None where it does not use it."""
    if inside is None or uuid is None:
        return None
    return next((one for one in inside.devices if one.uuid == uuid), None)


@dataclass(slots=True)
class _Known:
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
        self._known: list[_Known] = []
        self._found_at = self._slow_at = self._listed_at = -1e9
        _, self._at_home = own_pids()
        self._people = People(at_home=self._at_home)
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
            return MachineNow(time.time_ns() // 1000, (), self._host, None, (reason,))
        api = importlib.import_module("pynvml")
        if now - self._found_at >= _LOOK_AGAIN_S:
            self._find(api, nvml)
            self._found_at = now
        is_listed = now - self._listed_at >= _LISTED_EVERY_S or is_slow
        devices = tuple(self._device(api, nvml, known, is_slow, is_listed) for known in self._known)
        if is_listed:
            self._listed_at = now
            self._people.keep_only(
                {process.pid for device in devices for process in device.processes or ()}
            )
        notes = () if devices else ("The driver shows no GPU here.",)
        return MachineNow(time.time_ns() // 1000, devices, self._host, nvml.version(), notes)

    def _find(self, api: Any, nvml: Driver) -> None:
        """All GPUs, divided ones as their instances."""
        count = _ask(api, "nvmlDeviceGetCount")
        if count is None:  # another library has shut NVML down
            _ask(api, "nvmlInit")
            count = _ask(api, "nvmlDeviceGetCount") or 0
        before = {known.gpu.uuid: known for known in self._known}
        found: list[_Known] = []
        for number in range(count):
            handle = _ask(api, "nvmlDeviceGetHandleByIndex", number)
            if handle is None:  # fallen off the bus, or not permitted: it stays in sight
                found.append(_Known(Gpu(number, None), str(number), None, None))
                continue
            mode = _ask(api, "nvmlDeviceGetMigMode", handle)
            parts = _instances(api, handle) if mode and mode[0] else [handle]
            limit = _ask(api, "nvmlDeviceGetEnforcedPowerLimit", handle)
            for place, part in enumerate(parts):
                name = str(number) if part is handle else f"{number}:{place}"
                uuid = _text(_ask(api, "nvmlDeviceGetUUID", part))
                gpu = Gpu(
                    number,
                    _text(_ask(api, "nvmlDeviceGetName", part)),
                    uuid,
                    part is not handle,
                    "",
                    part,
                )
                one = _Known(gpu, name, handle, None if limit is None else limit / 1000)
                old = before.get(uuid)
                if uuid is not None and old is not None:
                    one.gpu_percent, one.temperature_c, one.power_w = (
                        old.gpu_percent,
                        old.temperature_c,
                        old.power_w,
                    )
                found.append(one)
        self._known = found

    def _device(
        self, api: Any, nvml: Driver, known: _Known, is_slow: bool, is_listed: bool
    ) -> DeviceNow:
        gpu = known.gpu
        base = DeviceNow(known.name, gpu.name, gpu.uuid, gpu.is_mig)
        figures = None if is_listed else free_and_total(gpu)
        if figures is None:
            memory = nvml.memory(gpu)
            if memory is None:
                self._found_at = min(
                    self._found_at, time.monotonic() - _LOOK_AGAIN_S + _SLOW_EVERY_S
                )  # look soon again
                return replace(base, notes=(_why_none(api, gpu),))
            figures, known.reserved = (memory.free_bytes, memory.total_bytes), memory.reserved_bytes
            known.processes = self._processes(memory, gpu.uuid)
        if is_listed:  # the driver itself works these out a few times a second
            if not gpu.is_mig:
                rates = _ask(api, "nvmlDeviceGetUtilizationRates", known.parent)
                known.gpu_percent = None if rates is None else int(rates.gpu)
            power = _ask(api, "nvmlDeviceGetPowerUsage", known.parent)
            known.power_w = None if power is None else power / 1000
        if is_slow:
            known.temperature_c = _ask(api, "nvmlDeviceGetTemperature", known.parent, 0)
        return replace(
            base,
            total_bytes=figures[1],
            free_bytes=figures[0],
            driver_bytes=known.reserved,
            gpu_percent=known.gpu_percent,
            temperature_c=known.temperature_c,
            power_w=known.power_w,
            power_limit_w=known.power_limit_w,
            processes=known.processes,
            notes=("The driver does not list the processes here.",)
            if known.processes is None
            else (),
        )

    def _processes(self, memory: GpuMemory, uuid: str | None) -> tuple[ProcessNow, ...] | None:
        people = {one.pid: self._people.get(one.pid) for one in memory.processes or ()}
        matched, unlisted = match(memory.processes or (), people, self._insides, uuid)
        rows = []
        for one in memory.processes or ():
            person, (inside, is_inferred) = people[one.pid], matched.get(one.pid, (None, False))
            command, rss = (
                person.command,
                self._rss_of(one.pid) if person.started is not None else None,
            )
            if inside is not None:
                command, rss = (
                    command or inside.program,
                    rss if rss is not None else inside.rss_bytes,
                )
            rows.append(
                ProcessNow(one.pid, one.used_bytes, person.user, command, rss, inside, is_inferred)
            )
        rows += [
            ProcessNow(one.pid, None, None, one.program, one.rss_bytes, one, True)
            for one in unlisted
        ]
        if memory.processes is None and not rows:
            return None
        return tuple(sorted(rows, key=lambda row: (-_size(row, uuid), row.pid)))

    def _rss_of(self, pid: int) -> int | None:
        if pid not in self._rss:
            self._rss[pid] = rss_bytes(pid)
        return self._rss[pid]


def _size(row: ProcessNow, uuid: str | None) -> int:
    if row.used_bytes is not None:
        return row.used_bytes
    held = held_on(row.inside, uuid)
    return 0 if held is None else held.reserved_bytes or 0


def _instances(api: Any, parent: Any) -> list[Any]:
    count = _ask(api, "nvmlDeviceGetMaxMigDeviceCount", parent) or 0
    found = (
        _ask(api, "nvmlDeviceGetMigDeviceHandleByIndex", parent, number) for number in range(count)
    )
    return [one for one in found if one is not None]


def _why_none(api: Any, gpu: Gpu) -> str:
    if gpu.handle is None:
        return "The driver does not open this GPU: it has fallen off the bus, or that is not permitted."
    try:
        api.nvmlDeviceGetMemoryInfo(gpu.handle)
    except Exception as error:
        return f"The driver gives no figures for this GPU ({(str(error) or type(error).__name__).rstrip('.')})."
    return "The driver gives figures for this GPU that cannot be true."


def _ask(api: Any, name: str, *args: Any) -> Any:
    try:
        return getattr(api, name)(*args)
    except Exception:
        return None


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None
