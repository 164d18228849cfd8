"""The facts of a recording about its devices: names, limits, statistics, and the ledger at start,
peak and end.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vramlens.capture.memory.device_ledger import Ledger, ledger
from vramlens.capture.memory.driver import driver
from vramlens.capture.memory.memory_now import host_memory
from vramlens.capture.process.own_thread import OwnThread
from vramlens.capture.torch_api import Allocator
from vramlens.capture.warn import harmless

_DRIVER_ANSWERS_WITHIN_S = 2.0


class DeviceFacts:
    """The devices that this process uses."""

    def __init__(self, gpu: Allocator) -> None:
        self._gpu = gpu
        self._ledgers: dict[str, dict[str, Any]] = {}
        self._most_used = -1

    @property
    def driver_version(self) -> str | None:
        """The driver's version; None where nobody tells."""
        nvml, _ = driver()
        return None if nvml is None else nvml.version()

    def in_use(self) -> list[int]:
        """The devices on which PyTorch holds memory, the one that holds most first."""
        reserved = {
            device: self._gpu.counters(device)[1] for device in range(self._gpu.device_count())
        }
        return sorted(
            (device for device in reserved if reserved[device]),
            key=lambda device: -reserved[device],
        )

    def devices(self) -> dict[str, dict[str, Any]]:
        """Name, memory, limit and ``memory_stats`` of each device in use, by index; the fullest
        first.
        """
        devices = {}
        for device in self.in_use() or [self._gpu.current_device()]:
            about = self._gpu.properties(device)
            fraction = self._gpu.memory_fraction(device)
            about["memory_fraction"] = fraction
            # As the allocator computes it: setMemoryFraction in c10/cuda/CUDACachingAllocator.cpp.
            limited = fraction is not None and fraction < 1
            about["limit_bytes"] = (
                int(about["total_bytes"] * fraction) if limited and fraction is not None else None
            )
            about["stats"] = self._gpu.stats(device)
            devices[str(device)] = about
        return devices

    def look(self) -> list[tuple[int, int, int, int | None]]:
        """Device, allocated, reserved and free bytes of each device in use; keeps the first and
        the fullest ledger.
        """
        ledgers = {device: ledger(device, ask_nccl=False) for device in self.in_use()}
        if ledgers and "start" not in self._ledgers:
            self._keep("start", list(ledgers.values()))
        used = sum(_used_bytes(ledger_now) for ledger_now in ledgers.values())
        if used > self._most_used:
            self._most_used = used
            self._keep("peak", list(ledgers.values()))
        return [
            (device, *self._gpu.counters(device), ledger_now.bytes_of("free"))
            for device, ledger_now in ledgers.items()
        ]

    def look_at_the_end(self, *, in_trouble: bool) -> None:
        """Keeps the ledger of now as the last one; ``in_trouble``: the program may hang or have
        failed.
        """

        @harmless("asking the driver")
        def look() -> None:
            self.look()
            self._keep("end", [ledger(device, ask_nccl=not in_trouble) for device in self.in_use()])

        # A driver that is starting, or a GPU that hangs, may answer late or never: the recording
        # does not wait for it.
        thread = OwnThread(look)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down: no new threads
            look()
        else:
            thread.join(_DRIVER_ANSWERS_WITHIN_S)

    def host_rss_bytes(self) -> int | None:
        """The process's memory on the host."""
        return host_memory().rss_bytes

    def ledgers(self) -> dict[str, Any]:
        """For the recording: by moment."""
        # A driver that answers late adds to it while the recording is written.
        return dict(self._ledgers)

    def _keep(self, moment: str, ledgers: list[Ledger]) -> None:
        self._ledgers[moment] = {
            "devices": {str(ledger_now.device): ledger_now.to_dict() for ledger_now in ledgers},
            "host": asdict(host_memory()),
        }


def _used_bytes(ledger_now: Ledger) -> int:
    """The bytes in use; where the driver does not say what is free, what somebody is known to
    hold.
    """
    return sum(
        row.bytes
        for row in ledger_now.rows
        if row.kind != ("unknown" if ledger_now.bytes_of("free") is None else "free")
    )
