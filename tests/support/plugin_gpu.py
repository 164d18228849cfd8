"""A GPU for tests of the pytest plugin: an allocator with a history, that hands out addresses
and remembers who asked.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from support.replay_oracle import SlowAllocator


class PluginGpu:
    """Stands in for ``vramlens.capture.torch_api.Allocator``; ``alloc`` and ``free`` stand in
    for tensors.
    """

    def __init__(self) -> None:
        self.allocator = SlowAllocator()
        self.history = False
        self.starts = self.stops = 0

    def is_initialized(self) -> bool:
        return True

    def is_visible(self) -> bool:
        return True

    def when_initialized(self, action: Any) -> None:
        action()

    def history_is_on(self) -> bool:
        return self.history

    def start_history(self, max_events: int) -> None:
        self.history, self.starts = True, self.starts + 1

    def stop_history(self) -> None:
        self.history, self.stops = False, self.stops + 1
        self.allocator.events.clear()

    def snapshot(self) -> dict[str, Any]:
        made = self.allocator.recording("")
        made["device_traces"] = [list(self.allocator.events)]
        return made

    def alloc(self, size: int) -> int:
        """Memory, asked for by the line that calls."""
        frames, frame = [], sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            frames.append(
                {"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name}
            )
            frame = frame.f_back
        return self._recorded(lambda: self.allocator.malloc(size), frames)

    def free(self, address: int) -> None:
        self._recorded(lambda: self.allocator.free(address), [])

    def _recorded(self, action: Any, frames: list[dict[str, Any]]) -> Any:
        before = len(self.allocator.events)
        found = action()
        if not self.history:
            del self.allocator.events[before:]
        for event in self.allocator.events[before:]:
            event.update(frames=frames, time_us=time.time_ns() // 1000)
        return found


GPU = PluginGpu()


def plug_in() -> PluginGpu:
    """Has the plugin find it in this process, as new."""
    from vramlens.pytest_plugin import use

    GPU.__init__()  # type: ignore[misc]
    use.find_gpu = lambda *, import_torch: GPU  # type: ignore[assignment]
    return GPU
