"""What is known of the GPUs before the process is copied: a copy can ask no driver."""

from __future__ import annotations

from typing import Any

from vramlens.capture.recording.device_facts import DeviceFacts
from vramlens.capture.torch_api import Allocator


class KnownFacts(DeviceFacts):
    """The facts of the moment at which ``ask`` was called."""

    def __init__(self, gpu: Allocator) -> None:
        super().__init__(gpu)
        self._version: str | None = None
        self._devices: dict[str, dict[str, Any]] | None = None

    def ask(self) -> None:
        """Asks PyTorch and the driver."""
        super().look_at_the_end(in_trouble=False)
        self._version = super().driver_version
        self._devices = super().devices()

    @property
    def driver_version(self) -> str | None:
        """The driver's version; None where nobody tells."""
        return self._version

    def devices(self) -> dict[str, dict[str, Any]]:
        """Name, memory, limit and statistics of each device in use, by index."""
        return super().devices() if self._devices is None else self._devices

    def look_at_the_end(self, *, in_trouble: bool) -> None:
        """Keeps what ``ask`` was told, which is later asked of nobody."""
        if self._devices is None:
            super().look_at_the_end(in_trouble=in_trouble)
