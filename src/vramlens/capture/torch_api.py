"""PyTorch's private memory functions, and how they differ between versions: the only module that
knows them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vramlens.ground.program_errors import answer_of, let_through

Observer = Callable[[int, int, int, int], None]
"""Called with device, bytes asked for, bytes of the device, bytes free; on the thread whose
request failed.
"""


def loaded_torch() -> Any:
    """The ``torch`` module if the program has imported it, else None."""
    return sys.modules.get("torch")


def cuda_in_use() -> Any:
    """``torch.cuda`` once the program uses a GPU; else None. Never begins to use one, never
    imports torch.
    """
    cuda: Any = getattr(loaded_torch(), "cuda", None)
    return cuda if answer_of(lambda: cuda.is_initialized()) else None


def connect() -> Allocator | None:
    """The kind of GPU that the imported torch was built for; None without one, or without torch."""
    torch = loaded_torch()
    if torch is None:
        return None
    if hasattr(torch._C, "_cuda_memorySnapshot"):  # ROCm answers to the same names
        return Allocator(torch, torch.cuda, "cuda")
    if hasattr(torch._C, "_xpu_recordMemoryHistory") and hasattr(torch, "xpu"):
        return Allocator(torch, torch.xpu, "xpu")
    return None


@dataclass(frozen=True, slots=True)
class Counters:
    """The allocator's counters of one device, in bytes, and how often it retried and failed.

    Attributes:
        waste_bytes: what is free in pieces between live blocks.
    """

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_bytes: int = 0
    waste_bytes: int = 0
    retries: int = 0
    failures: int = 0


def counters(cuda: Any, index: int) -> Counters | None:
    """A device's counters; None where its allocator does not count (RMM's, other pluggable
    ones).
    """
    try:
        # The flat form, memory_stats, sorts some two hundred keys each time: this one is what the
        # allocator gives.
        stats: Mapping[str, Any] = cuda.memory_stats_as_nested_dict(device=index)
        if not stats:
            return Counters()
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        waste = stats.get("inactive_split_bytes", {}).get("all", {})
        return Counters(
            allocated_bytes=int(allocated["current"]),
            reserved_bytes=int(reserved["current"]),
            peak_bytes=int(allocated["peak"]),
            waste_bytes=int(waste.get("current", 0)),
            retries=int(stats.get("num_alloc_retries", 0)),
            failures=int(stats.get("num_ooms", 0)),
        )
    except Exception as error:
        let_through(error)
        return None


def flat_stats(module: Any, device: int) -> dict[str, Any]:
    """``torch.cuda.memory_stats`` of a module such as ``torch.cuda``.

    Raises:
        Exception: an allocator that does not count (CUDAPluggableAllocator).
    """
    return dict(module.memory_stats(device))


def device_memory(module: Any, device: int) -> tuple[int, int]:
    """Free and total bytes by ``mem_get_info``, which makes a context where there is none."""
    free, total = module.mem_get_info(device)
    return int(free), int(total)


def context_asker(torch: Any, kind: str) -> Callable[[int], Any] | None:
    """The function that says whether this process has a context on a device, without making one;
    None where this PyTorch does not say.
    """
    return getattr(getattr(torch, "_C", None), f"_{kind}_hasPrimaryContext", None)


def pinned_memory() -> tuple[int | None, int | None]:
    """PyTorch's page-locked bytes: handed out, and with those kept for later.

    Those are ``active_bytes`` and ``allocated_bytes``; in older versions, which count
    ``reserved_bytes``, they are ``allocated_bytes`` and that (the docstrings of
    ``torch.cuda.host_memory_stats``).
    """
    cuda = cuda_in_use()
    try:
        stats = {} if cuda is None else cuda.host_memory_stats_as_nested_dict()
        is_older = "reserved_bytes" in stats
        keys = ("allocated", "reserved") if is_older else ("active", "allocated")
        handed_out, reserved = (int(stats[f"{key}_bytes"]["current"]) for key in keys)
        # PyTorch 2.11 counts on what has been freed: under FSDP2 the first grows with every step.
        return min(handed_out, reserved), reserved
    except Exception as error:  # before PyTorch 2.7
        let_through(error)
        return None, None


@dataclass(frozen=True)
class DeviceState:
    """What the driver says of a process.

    Attributes:
        current: the device that the thread uses.
        free_and_total: bytes of that device.
        contexts: devices on which the process has a context.
    """

    current: int
    free_and_total: tuple[int, int]
    contexts: frozenset[int]


class Allocator:
    """The caching allocator of the GPUs that this process uses.

    Attributes:
        kind: "cuda" (ROCm too) or "xpu": what ``torch.device`` calls it.
    """

    def __init__(self, torch: Any, module: Any, kind: str) -> None:
        self._torch, self._module, self.kind = torch, module, kind

    def is_initialized(self) -> bool:
        """True where this process has begun to use a GPU."""
        return bool(self._module.is_initialized())

    def device_state(self) -> DeviceState:
        """What can be asked only where a GPU can be used, for ``become_copy``."""
        ask = context_asker(self._torch, self.kind)
        devices = range(self.device_count())
        contexts = {device for device in devices if ask is not None and ask(device)}
        current = self.current_device()
        if contexts and current not in contexts:
            current = min(contexts)  # a thread's own, on which the question would make a context
        return DeviceState(current, device_memory(self._module, current), frozenset(contexts))

    def become_copy(self, state: DeviceState) -> None:
        """In a forked copy of the process: PyTorch's own figures and events may be read there, as
        they lie in its memory. The GPU itself cannot be used: the driver is asked nothing.
        """
        self._module._is_in_bad_fork = lambda: False
        self._module.current_device = lambda: state.current
        self._module.mem_get_info = lambda device=None: state.free_and_total
        if context_asker(self._torch, self.kind) is not None:
            setattr(
                self._torch._C,
                f"_{self.kind}_hasPrimaryContext",
                lambda device: device in state.contexts,
            )

    def is_visible(self) -> bool:
        """True where there is a GPU at all. Asks the driver: only for when the program is over."""
        return bool(self._module.is_available())

    def when_initialized(self, action: Callable[[], None]) -> None:
        """Runs ``action`` now, or as soon as the program first uses a GPU; never makes it begin."""
        if self.is_initialized():
            action()
        else:
            self._module._lazy_call(action)

    def device_count(self) -> int:
        """The number of devices that the process sees."""
        return int(self._module.device_count())

    def current_device(self) -> int:
        """The device that the calling thread uses."""
        return int(self._module.current_device())

    def history_is_on(self) -> bool:
        """True where somebody has PyTorch record already."""
        is_enabled = getattr(self._torch._C, "_cuda_isHistoryEnabled", None)
        try:
            return self.kind == "cuda" and is_enabled is not None and bool(is_enabled())
        except RuntimeError:  # an allocator that keeps no history
            return False

    def history_events(self) -> int:
        """The events that the history may hold by now: three of each allocation, two of each
        segment; 0 where nobody has PyTorch record.
        """
        if not self.is_initialized() or not self.history_is_on():
            return 0
        events = 0
        for device in range(self.device_count()):
            stats = self.stats(device)
            events += 3 * int(stats.get("allocation.all.allocated", 0))
            events += 2 * int(stats.get("segment.all.allocated", 0))
        return events

    def start_history(self, max_events: int) -> None:
        """Has PyTorch record events, the last ``max_events`` of each device, with the Python stack
        of each request.

        Frees get no stack: gathering one takes as long as for a request, and nothing that vramlens
            says needs it.

        Raises:
            RuntimeError: this allocator keeps no history (cudaMallocAsync, pluggable allocators).
        """
        self._module.memory._record_memory_history(
            "all", context="alloc", stacks="python", max_entries=max_events
        )

    def stop_history(self) -> None:
        """Has PyTorch stop recording."""
        self._module.memory._record_memory_history(None)

    def snapshot(self) -> dict[str, Any]:
        """Everything that PyTorch recorded, and the state now: ``torch.cuda.memory._snapshot``."""
        try:
            snapshot: dict[str, Any] = self._module.memory._snapshot()
        except RuntimeError:  # cudaMallocAsync and pluggable allocators have nothing to show
            return {"segments": [], "device_traces": []}
        return snapshot

    def state(self) -> dict[str, Any] | None:
        """The segments now, without events; None where this version cannot give them cheaply."""
        try:
            return {"segments": self._module.memory.memory_snapshot(include_traces=False)}
        except (AttributeError, TypeError, RuntimeError):  # before PyTorch 2.10; another allocator
            return None

    def attach_observer(self, observer: Observer) -> None:
        """Has PyTorch call ``observer`` whenever a request fails. It stays for good: there is no
        way to detach it.
        """
        attach = getattr(self._torch._C, "_cuda_attach_out_of_memory_observer", None)
        if self.kind == "cuda" and attach is not None:
            with contextlib.suppress(RuntimeError):  # cudaMallocAsync has no observers
                attach(observer)

    def marker(self) -> tuple[Callable[[str], None], Callable[[], str]] | None:
        """The functions that put a text on the calling thread's allocations from now on, and that
        read it; from PyTorch 2.10 on.
        """
        put = getattr(self._torch._C, "_cuda_setMemoryMetadata", None)
        read = getattr(self._torch._C, "_cuda_getMemoryMetadata", None)
        return None if self.kind != "cuda" or put is None or read is None else (put, read)

    def counters(self, device: int) -> tuple[int, int]:
        """Allocated and reserved bytes of a device, in some ten microseconds."""
        try:
            raw = getattr(self._torch._C, f"_{self.kind}_memoryStats")(device)
            return int(raw["allocated_bytes"]["all"]["current"]), int(
                raw["reserved_bytes"]["all"]["current"]
            )
        except (KeyError, RuntimeError):  # an allocator that does not count
            return 0, 0

    def stats(self, device: int) -> dict[str, Any]:
        """``torch.cuda.memory_stats``."""
        try:
            return flat_stats(self._module, device)
        except RuntimeError:
            return {}

    def memory_fraction(self, device: int) -> float | None:
        """The share that ``set_per_process_memory_fraction`` was given; 1.0 by default, None where
        it cannot be told.
        """
        get = getattr(self._torch._C, f"_{self.kind}_getMemoryFraction", None)
        try:
            return None if get is None else float(get(device))
        except RuntimeError:  # a pluggable allocator
            return None

    def properties(self, device: int) -> dict[str, Any]:
        """Name, unique id and memory (bytes) of a device."""
        device_properties = self._module.get_device_properties(device)
        uuid = getattr(device_properties, "uuid", None)
        return {
            "name": str(device_properties.name),
            "uuid": None if uuid is None else str(uuid),
            "total_bytes": int(device_properties.total_memory),
        }

    def versions(self) -> dict[str, str | None]:
        """The versions of torch and of what it was built with."""
        version = self._torch.version
        return {
            "torch": str(self._torch.__version__),
            "cuda": version.cuda,
            "hip": getattr(version, "hip", None),
        }

    def out_of_memory_error(self) -> type[BaseException] | None:
        """The exception that a failed request raises."""
        error: type[BaseException] | None = getattr(
            self._torch, "OutOfMemoryError", None
        ) or getattr(self._torch.cuda, "OutOfMemoryError", None)
        return error
