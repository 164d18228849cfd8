"""A GPU that is none: PyTorch's allocator interface, answering from a real recording, for
machines without one.
"""

from __future__ import annotations

import lzma
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data"
OOM_TEXT = "CUDA out of memory. Tried to allocate {size}. GPU 0 has a total capacity of 139.81 GiB of which 136.94 GiB is free."


class FakeGpu:
    """Stands in for ``vramlens.capture.torch_api.Allocator``."""

    kind = "cuda"

    def __init__(
        self, recording: str = "recordings/gpt.pickle.xz", *, metadata: bool = True
    ) -> None:
        self.recording, self.metadata = recording, metadata
        self.initialized = self.history = False
        self.waiting: list[Callable[[], None]] = []
        self.observers: list[Any] = []
        self.mark = ""
        self.max_events = 0
        self.calls: list[str] = []

    def use(self) -> None:
        """What the program's first ``.cuda()`` does."""
        self.initialized = True
        while self.waiting:
            self.waiting.pop(0)()

    def fail(self, size: int = 1 << 30, text: str = "1024.00 MiB") -> None:
        """What a request does that cannot be met."""
        import torch

        for observer in self.observers:
            observer(0, size, 150 << 30, 137 << 30)
        raise torch.OutOfMemoryError(OOM_TEXT.format(size=text))

    def is_initialized(self) -> bool:
        return self.initialized

    def is_visible(self) -> bool:
        return True

    def when_initialized(self, action: Callable[[], None]) -> None:
        if self.initialized:
            action()
        else:
            self.waiting.append(action)

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def history_is_on(self) -> bool:
        return self.history

    def start_history(self, max_events: int) -> None:
        self.calls.append("start")
        self.history, self.max_events = True, max_events

    def stop_history(self) -> None:
        self.calls.append("stop")
        self.history = False

    def snapshot(self) -> dict[str, Any]:
        self.calls.append("snapshot")
        return pickle.loads(lzma.decompress((DATA / self.recording).read_bytes()))

    def state(self) -> dict[str, Any]:
        return {"segments": []}

    def attach_observer(self, observer: Any) -> None:
        self.observers.append(observer)

    def marker(self) -> tuple[Callable[[str], None], Callable[[], str]] | None:
        return (self._set, lambda: self.mark) if self.metadata else None

    def _set(self, mark: str) -> None:
        self.mark = mark

    def counters(self, device: int) -> tuple[int, int]:
        return 10 << 20, 20 << 20

    def stats(self, device: int) -> dict[str, Any]:
        return {"allocated_bytes.all.current": 10 << 20}

    def memory_fraction(self, device: int) -> float:
        return 1.0

    def properties(self, device: int) -> dict[str, Any]:
        return {"name": "Fake GPU", "uuid": None, "total_bytes": 150 << 30}

    def versions(self) -> dict[str, str | None]:
        return {"torch": "2.13.0", "cuda": "13.0", "hip": None}

    def out_of_memory_error(self) -> type[BaseException]:
        import torch

        return torch.OutOfMemoryError


def plug_in(recording: str = "recordings/gpt.pickle.xz") -> FakeGpu:
    """Has vramlens find the fake one in this process."""
    from vramlens.capture import torch_api

    gpu = FakeGpu(recording)
    torch_api.connect = lambda: gpu
    return gpu
