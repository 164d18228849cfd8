"""The driver's knowledge: each GPU's memory and the processes on it, asked of NVML; nothing here
touches CUDA.

GPUs are found by UUID or PCI address, never by NVML's index: CUDA numbers them by its own order and
by CUDA_VISIBLE_DEVICES. No call raises and none makes a CUDA context; where NVML is absent the
reason is one sentence.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_LISTS = ("Compute", "Graphics", "MPSCompute")
_HAS_PROC = os.path.exists("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG instance, as this process numbers it.

    Attributes:
        index: CUDA's index in this process (``cuda:index``).
        name: the product, as the driver calls it.
        uuid: ``GPU-…`` or ``MIG-…``.
        is_mig: whether it is an instance of a divided GPU.
        note: what is not certain about which GPU this is; empty where it is certain.
        handle: NVML's handle; None where NVML does not know this GPU.
    """

    index: int
    name: str | None = None
    uuid: str | None = None
    is_mig: bool = False
    note: str = ""
    handle: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU.

    Attributes:
        pid: as the driver counts, which in a container is often the host's number.
        used_bytes: None where the driver does not say (Windows' WDDM, some containers).
    """

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The driver's figures for one GPU.

    Attributes:
        reserved_bytes: kept by driver and firmware; None where the driver is too old to tell it
            apart.
        processes: None where the driver does not list them.
    """

    total_bytes: int
    free_bytes: int
    reserved_bytes: int | None
    processes: tuple[GpuProcess, ...] | None


def driver() -> tuple[Driver | None, str]:
    """NVML, ready to be asked, or None and the reason as one sentence; the answer is kept for
    this process.
    """
    pid = os.getpid()
    cached = _drivers.get(pid)
    if cached is None:
        cached = _load()
        _drivers.clear()  # after a fork the parent's handles are not ours
        _drivers[pid] = cached
    return cached


def forget() -> None:
    """Drops what ``driver`` has kept, so that the next call looks again."""
    _drivers.clear()


@contextmanager
def shut_down_afterwards() -> Iterator[None]:
    """Shuts NVML down at the end of the block, where ``driver`` was not used before: the descriptors
    and the thread that it has of its own do not stay. NVML counts who uses it: another user of the
    process keeps it.
    """
    was_used = os.getpid() in _drivers
    try:
        yield
    finally:
        nvml, _ = _drivers.get(os.getpid(), (None, ""))
        if not was_used and nvml is not None:
            forget()
            nvml.ask("nvmlShutdown")


_LIBRARY_NOT_FOUND = 12
"""NVML_ERROR_LIBRARY_NOT_FOUND (nvml.h): no driver is installed, or a container was not given one."""

_drivers: dict[int, tuple[Driver | None, str]] = {}


def _load() -> tuple[Driver | None, str]:
    try:
        pynvml = importlib.import_module("pynvml")
    except Exception as error:
        if isinstance(error, ImportError):
            return (
                None,
                "The NVIDIA driver cannot be queried without pynvml (pip install nvidia-ml-py).",
            )
        return None, f"The NVIDIA driver cannot be queried: pynvml does not load ({_words(error)})."
    try:
        pynvml.nvmlInit()
    except Exception as error:
        is_missing = getattr(error, "value", None) == _LIBRARY_NOT_FOUND
        trouble = (
            "No NVIDIA driver was found" if is_missing else "The NVIDIA driver does not answer"
        )
        return None, f"{trouble} ({_words(error)})."
    return Driver(pynvml), ""


def _words(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().rstrip(".")


class Driver:
    """NVML of this process. Safe to use from several threads: NVML is, and what is kept is only
    ever added to.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._gpus: dict[tuple[object, ...], tuple[Gpu, ...]] = {}
        self._version: str | None = None

    def version(self) -> str | None:
        """The driver's version, such as ``580.159.04``."""
        if self._version is None:
            self._version = name_text(self.ask("nvmlSystemGetDriverVersion"))
        return self._version

    def gpus(self, cuda: Any = None) -> tuple[Gpu, ...]:
        """The GPUs that this process sees, in CUDA's order.

        Args:
            cuda: ``torch.cuda`` once it is initialised: it knows which GPU is which. Without it the
                order is worked out from CUDA_VISIBLE_DEVICES.
        """
        key = ("cuda", _count(cuda)) if cuda is not None else _environment()
        cached = self._gpus.get(key)
        if cached is None:
            by_cuda = cuda is not None
            cached = self._numbered_by_cuda(cuda) if by_cuda else self._numbered_by_environment()
            self._gpus[key] = cached
        return cached

    def gpu(self, index: int, handle: Any, note: str = "") -> Gpu:
        """What the driver says a GPU is."""
        name, uuid = (
            name_text(self.ask(f"nvmlDeviceGet{field}", handle)) for field in ("Name", "UUID")
        )
        return Gpu(
            index=index,
            name=name,
            uuid=uuid,
            is_mig=self._is_instance(handle),
            note=note,
            handle=handle,
        )

    def memory(self, gpu: Gpu) -> GpuMemory | None:
        """The figures for a GPU now; None where the driver gives none."""
        if gpu.handle is None:
            return None
        return self._memory(gpu.handle) or self._memory_after_shutdown(gpu)

    def why_no_memory(self, gpu: Gpu) -> str:
        """A sentence on why ``memory`` of a GPU is None."""
        if gpu.handle is None:
            return (
                "The driver cannot open this GPU: it has fallen off the bus, or permission is"
                " missing."
            )
        try:
            self._nvml.nvmlDeviceGetMemoryInfo(gpu.handle)
        except Exception as error:
            return f"The driver reports no numbers for this GPU ({_words(error)})."
        return "The driver reports impossible numbers for this GPU."

    def parts(self, handle: Any) -> list[Any]:
        """The GPU itself, or its instances where it is divided."""
        return list(self._instances(handle)) if self._is_divided(handle) else [handle]

    def ask(self, name: str, *args: Any) -> Any:
        """The answer of a call of NVML; None where it is missing, refused or fails."""
        try:
            return getattr(self._nvml, name)(*args)
        except Exception:
            return None

    def _memory_after_shutdown(self, gpu: Gpu) -> GpuMemory | None:
        """A second try: another library may have shut NVML down, which makes every handle
        invalid.
        """
        if self.ask("nvmlDeviceGetCount") is not None:
            return None  # NVML is up: it has no figures for this GPU
        try:
            self._nvml.nvmlInit()
        except Exception:
            return None
        self._gpus.clear()
        handle = self.ask("nvmlDeviceGetHandleByUUID", gpu.uuid) if gpu.uuid else None
        return self._memory(handle) if handle is not None else None

    def _memory(self, handle: Any) -> GpuMemory | None:
        # ``used`` is not read: the manuals of R525 and R590 disagree whether version 2 counts the
        # reserved part in it. Total, free and reserved mean the same in both.
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        info = self.ask("nvmlDeviceGetMemoryInfo", handle, version) if version is not None else None
        reserved = getattr(info, "reserved", None)
        if info is None:
            info = self.ask("nvmlDeviceGetMemoryInfo", handle)
        if info is None or not 0 <= info.free <= info.total:
            return None
        total, free = int(info.total), int(info.free)
        if reserved is not None:
            reserved = int(reserved) if 0 <= reserved <= total - free else None
        return GpuMemory(total, free, reserved, self._processes(handle, total))

    def _processes(self, handle: Any, total: int) -> tuple[GpuProcess, ...] | None:
        """One row a process, however many of NVML's lists it is in; None where compute processes
        are not listed.
        """
        used: dict[int, int | None] = {}
        for kind in _LISTS:
            rows = self._running(kind, handle)
            if rows is None and kind == "Compute":
                return None
            for row in rows or ():
                pid, size = int(row.pid), getattr(row, "usedGpuMemory", None)
                # Nothing at all, or more than there is, is not a figure: containers under driver 560
                # are told 0 (HAMi-core issue 112), and a struct of another version scrambles the
                # fields (nvitop issue 75).
                used_bytes = int(size) if size is not None and 0 < size <= total else None
                before = used.get(pid)
                used[pid] = max(filter(None, (before, used_bytes)), default=None)
        return tuple(GpuProcess(pid, size) for pid, size in sorted(used.items()))

    def _running(self, kind: str, handle: Any) -> list[Any] | None:
        for suffix in ("_v3", "_v2", ""):
            rows = self.ask(f"nvmlDeviceGet{kind}RunningProcesses{suffix}", handle)
            if rows is not None:
                return list(rows)
        return None

    def _numbered_by_cuda(self, cuda: Any) -> tuple[Gpu, ...]:
        named = [
            entry for entry in (os.environ.get("CUDA_VISIBLE_DEVICES") or "").split(",") if entry
        ]
        guessed = self._numbered_by_environment()
        gpus = []
        for index in range(_count(cuda)):
            try:
                properties = cuda.get_device_properties(index)
            except Exception:
                properties = None
            entry = named[index].strip() if index < len(named) else ""
            handle = self._handle_of(entry, properties)
            if handle is not None:
                gpus.append(self.gpu(index, handle))
            elif index < len(guessed) and not (_bare_uuid(properties) or _pci_address(properties)):
                gpus.append(guessed[index])
            else:
                note = "It is unknown which of the driver's GPUs or MIG instances this is."
                gpus.append(Gpu(index, name_text(getattr(properties, "name", None)), note=note))
        return tuple(gpus)

    def _handle_of(self, entry: str, properties: Any) -> Any:
        instance = self._named(entry, [])
        return self._by_properties(properties) if instance is None else instance

    def _by_properties(self, properties: Any) -> Any:
        uuid = _bare_uuid(properties)
        if uuid:
            for prefix in ("GPU-", "MIG-"):
                handle = self.ask("nvmlDeviceGetHandleByUUID", prefix + uuid)
                if handle is not None:
                    return self._undivided(handle)
        bus = _pci_address(properties)
        handle = self.ask("nvmlDeviceGetHandleByPciBusId", bus) if bus else None
        return self._undivided(handle) if handle is not None else None

    def _undivided(self, handle: Any) -> Any:
        """The handle, or that of the only instance where the GPU is divided; None where it
        cannot be told which.
        """
        if not self._is_divided(handle):
            return handle
        instances = list(self._instances(handle))
        return instances[0] if len(instances) == 1 else None

    def _is_divided(self, handle: Any) -> bool:
        if self._is_instance(handle):
            return False
        mode = self.ask("nvmlDeviceGetMigMode", handle)
        return bool(mode and mode[0])

    def _is_instance(self, handle: Any) -> bool:
        answer = self.ask("nvmlDeviceIsMigDeviceHandle", handle)
        return bool(getattr(answer, "value", answer))

    def _instances(self, parent: Any) -> Iterator[Any]:
        for number in range(self.ask("nvmlDeviceGetMaxMigDeviceCount", parent) or 0):
            handle = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", parent, number)
            if handle is not None:
                yield handle

    def _numbered_by_environment(self) -> tuple[Gpu, ...]:
        """The GPUs in CUDA's order: the rules of ``torch.cuda._parse_visible_devices``."""
        variable, order = _environment()
        count = self.ask("nvmlDeviceGetCount") or 0
        handles = [self.ask("nvmlDeviceGetHandleByIndex", number) for number in range(count)]
        if variable is not None and variable.startswith(("GPU-", "MIG-")):
            known_handles = [handle for handle in handles if handle is not None]
            chosen = self._chosen_by_uuid(variable, known_handles)
            return tuple(self.gpu(index, handle) for index, handle in enumerate(chosen))
        numbers = range(count) if variable is None else _ordinals(variable)
        return tuple(self._chosen_by_number(numbers, handles, self._doubt_of_order(order, handles)))

    def _chosen_by_number(self, numbers: Iterable[int], handles: list[Any], note: str) -> list[Gpu]:
        gpus: list[Gpu] = []
        for number in numbers:
            if number >= len(handles) or handles[number] is None:
                break
            parts = self.parts(handles[number])
            doubt = note
            if len(parts) > 1:
                doubt = "It is not yet known which instances of this GPU CUDA uses."
            for part in parts:
                gpus.append(self.gpu(len(gpus), part, doubt))
        return gpus

    def _doubt_of_order(self, order: str, handles: list[Any]) -> str:
        """A note where CUDA may number GPUs otherwise than by their address; else empty."""
        products = {name_text(self.ask("nvmlDeviceGetName", handle)) for handle in handles}
        if order == "PCI_BUS_ID" or len(products) < 2:
            return ""
        return (
            "CUDA may number these GPUs differently, fastest first (set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID to avoid this)."
        )

    def _chosen_by_uuid(self, variable: str, handles: list[Any]) -> list[Any]:
        uuids = [name_text(self.ask("nvmlDeviceGetUUID", handle)) or "" for handle in handles]
        by_uuid = list(zip(uuids, handles, strict=True))
        chosen: list[Any] = []
        taken: set[str] = set()
        for entry in map(str.strip, variable.split(",")):
            if entry in taken:
                return []  # CUDA shows nothing where a device is named twice
            taken.add(entry)
            handle = self._named(entry, by_uuid)
            if handle is None:
                break  # CUDA stops at the first name that it does not know
            chosen.append(handle)
        return chosen

    def _named(self, entry: str, by_uuid: list[tuple[str, Any]]) -> Any:
        """The instance of that name, or the only GPU whose UUID begins so; None: there is none."""
        if entry.startswith("MIG-"):
            return self.ask("nvmlDeviceGetHandleByUUID", entry)
        matches = [
            handle
            for uuid, handle in by_uuid
            if entry.startswith("GPU-") and uuid.startswith(entry)
        ]
        return matches[0] if len(matches) == 1 else None


def own_pids() -> tuple[tuple[int, ...], bool]:
    """This process's numbers, the outermost first, and whether the driver must count as this
    process does.

    In a container the driver often reports the host's numbers (nvidia-docker issue 1483). The
    kernel shows here only those from the namespace that /proc was mounted in and inward; 4026531836
    is the machine's own namespace (PROC_PID_INIT_INO in Linux's include/linux/proc_ns.h).
    """
    pid = os.getpid()
    if not _HAS_PROC:
        return (pid,), True  # Windows: it has no such namespaces
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            line = next((text for text in status if text.startswith("NSpid:")), "")
        numbers = tuple(int(word) for word in line.split()[1:])
        sees_host_pids = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    except (OSError, ValueError):
        return (pid,), False
    return (numbers or (pid,)), sees_host_pids


def process_name(pid: int) -> str | None:
    """The program's short name, without its arguments; None where that is not permitted or it
    has ended.
    """
    try:
        if _HAS_PROC:
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                return file.read().strip() or None
        return str(importlib.import_module("psutil").Process(pid).name()) or None
    except Exception:
        return None


def _environment() -> tuple[str | None, str]:
    return os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get(
        "CUDA_DEVICE_ORDER", "FASTEST_FIRST"
    )


def _ordinals(variable: str) -> list[int]:
    """The numbers in CUDA_VISIBLE_DEVICES: the first that is not a number ends the list, one named twice
    empties it.
    """
    numbers: list[int] = []
    for entry in variable.split(","):
        digits = entry.strip().removeprefix("+")
        size = next((at for at, char in enumerate(digits) if not ("0" <= char <= "9")), len(digits))
        if not 0 < size <= 9:
            break
        number = int(digits[:size])
        if number in numbers:
            return []
        numbers.append(number)
    return numbers


def _count(cuda: Any) -> int:
    try:
        return int(cuda.device_count())
    except Exception:
        return 0


def _bare_uuid(properties: Any) -> str:
    uuid = getattr(properties, "uuid", None)
    return "" if uuid is None else str(uuid).removeprefix("GPU-").removeprefix("MIG-")


def _pci_address(properties: Any) -> str:
    """As NVML reads it, ``00000000:1B:00.0``; empty where this PyTorch does not give it."""
    numbers = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    parts = [part for part in numbers if isinstance(part, int)]
    return "{:08X}:{:02X}:{:02X}.0".format(*parts) if len(parts) == 3 else ""


def name_text(value: Any) -> str | None:
    """A name as the driver gives it, bytes or text; None where it is neither."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None
