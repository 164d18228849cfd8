"""The GPU memory that one test uses: its peak above what was there before, what it leaves
behind, by line.

It is read from PyTorch's own history, not from its peak counters: a test may reset those, and may
rely on them. All sizes are requested bytes, which are the same in every run; of several devices the
one with most counts.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vramlens.capture import torch_api
from vramlens.capture.recording.ring_size import default_max_events
from vramlens.foreign_text import text_of
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.attribution.attribution import Attribution
    from vramlens.capture.torch_api import Allocator

_LINES = 5


@dataclass(frozen=True, slots=True)
class MeasuredLine:
    """Bytes that a line asked for during a test; ``place`` is ``file:line in function``."""

    place: str
    bytes: int


@dataclass(frozen=True, slots=True)
class TestUse:
    """The GPU memory that a test used.

    Attributes:
        peak_bytes: the most that it held at once of its own.
        kept_bytes: what is still there of it when it is over.
        peak_lines, kept_lines: who asked for those, the most first.
        is_whole: whether PyTorch kept every event; else the figures are lower bounds.
    """

    __test__ = False  # for pytest, which looks at names

    peak_bytes: int
    kept_bytes: int
    peak_lines: tuple[MeasuredLine, ...] = ()
    kept_lines: tuple[MeasuredLine, ...] = ()
    is_whole: bool = True


NOTHING = TestUse(0, 0)


def find_gpu(*, import_torch: bool) -> Allocator | None:
    """The GPU that tests can use; None without one, or without PyTorch.

    Args:
        import_torch: whether to import it, where no test has yet.
    """
    if import_torch and "torch" not in sys.modules:
        try:
            import torch  # noqa: F401
        except ImportError:
            return None
    gpu = torch_api.connect()
    return gpu if gpu is not None and gpu.is_visible() else None


class MeasuredTest:
    """Measures one test: ``begin()``, the test, ``end()``."""

    def __init__(self, gpu: Allocator) -> None:
        self._gpu = gpu
        self._running = self._ours = False
        self._began_us = 0

    def begin(self) -> None:
        """From here on memory is the test's; what is there already does not count, nor hide
        anything by being freed.
        """
        self._running = True
        if self._gpu.is_initialized():
            clear_workspaces()
        self._gpu.when_initialized(self._start)
        self._began_us = time.time_ns() // 1000

    def _start(self) -> None:
        if self._running and not self._gpu.history_is_on():
            # An allocator without history (cudaMallocAsync) raises: then there is nothing to see.
            with contextlib.suppress(RuntimeError):
                self._gpu.start_history(default_max_events(1))
                self._ours = True

    def end(self, *, collect: bool = False) -> TestUse:
        """The memory that the test used. Nothing is left of the measurement.

        Args:
            collect: whether garbage in cycles is freed first: it is not a leak, but looking for it
                takes time.
        """
        self._running = False
        if not self._gpu.is_initialized():
            return NOTHING
        if collect:
            gc.collect()
        clear_workspaces()
        try:
            snapshot = self._gpu.snapshot()
        finally:
            if self._ours:
                self._gpu.stop_history()
                self._ours = False
        return _use_of(snapshot, self._began_us)


def clear_workspaces() -> None:
    """Frees what cuBLAS keeps for the next product: whichever test comes first would seem to
    leave it behind.
    """
    torch = torch_api.loaded_torch()
    clear = getattr(getattr(torch, "_C", None), "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def _use_of(snapshot: dict[str, Any], since_us: int) -> TestUse:
    """The peak of the device that was used most, and what stays on the one where most stays,
    since a moment.
    """
    from vramlens.analyses.attribution.attribution import attribute
    from vramlens.read.live_history import read_history

    room = snapshot.get("allocator_settings", {}).get(
        "trace_alloc_max_entries"
    ) or default_max_events(1)
    trace = read_history(snapshot, "this test", since_us)
    uses = []
    for device in trace.devices.values():
        if not len(device.events):
            continue
        view = attribute(trace, device)
        is_whole = len(device.events) < room
        uses.append(_device_use(view, is_whole))
    if not uses:
        return NOTHING
    fullest = max(uses, key=lambda use: use.peak_bytes)
    leakiest = max(uses, key=lambda use: use.kept_bytes)
    return TestUse(
        peak_bytes=fullest.peak_bytes,
        kept_bytes=leakiest.kept_bytes,
        peak_lines=fullest.peak_lines,
        kept_lines=leakiest.kept_lines,
        is_whole=all(use.is_whole for use in uses),
    )


def _device_use(view: Attribution, is_whole: bool) -> TestUse:
    device = view.device
    rows = device.allocations
    curve = device.requested_curve
    # What was there before may be freed during the test, which must not hide what the test takes.
    test_bytes = curve - _older(view)
    peak = int(test_bytes.argmax())
    is_of_test = rows.born >= 0
    is_at_peak = is_of_test & (rows.born <= peak) & (rows.died > peak)
    is_kept = is_of_test & (rows.free_requested >= len(device.events))
    return TestUse(
        peak_bytes=max(0, int(test_bytes[peak])),
        kept_bytes=int(rows.requested_bytes[is_kept].sum()),
        peak_lines=_lines(view, is_at_peak),
        kept_lines=_lines(view, is_kept),
        is_whole=is_whole,
    )


def _older(view: Attribution) -> Any:
    """Requested bytes from before the test that are still there after each event."""
    import numpy as np

    rows, events = view.device.allocations, len(view.device.events)
    old = rows.born < 0
    freed = np.zeros(events + 1, np.int64)
    np.add.at(freed, rows.died[old], rows.requested_bytes[old])
    return view.device.requested.base_bytes - np.cumsum(freed[:-1])


def _lines(view: Attribution, rows: Any) -> tuple[MeasuredLine, ...]:
    """The lines that asked for some allocations, the most first."""
    import numpy as np

    bytes_by_line: dict[str, int] = {}
    frames = view.phases.frame[rows]
    sizes = view.device.allocations.requested_bytes[rows]
    for frame in np.unique(frames).tolist():
        place = view.place(frame)
        name = (
            str(place) if place is not None else "no line in your code (the backward pass, or C++)"
        )
        bytes_by_line[name] = bytes_by_line.get(name, 0) + int(sizes[frames == frame].sum())
    largest = sorted(bytes_by_line.items(), key=lambda item: (-item[1], item[0]))
    return tuple(MeasuredLine(place, size) for place, size in largest)


def described(lines: tuple[MeasuredLine, ...]) -> str:
    """Lines as text, one a row, the largest five."""
    width = max((len(format_size(line.bytes)) for line in lines[:_LINES]), default=0)
    text = [f"  {format_size(line.bytes):>{width}}  {line.place}" for line in lines[:_LINES]]
    if len(lines) > _LINES:
        unlisted_bytes = sum(line.bytes for line in lines[_LINES:])
        text.append(
            f"  {format_size(unlisted_bytes):>{width}}  {counted(len(lines) - _LINES, 'more line')}"
        )
    return text_of(text)
