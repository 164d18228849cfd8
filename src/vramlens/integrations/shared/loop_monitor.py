"""Shared by the callbacks of all training loops: a monitor that steps with the loop, scalars
every so often, a recording, a watch for leaks, and what is kept of an out-of-memory error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from vramlens.capture.process_group import initialized_group
from vramlens.capture.recording.output_path import RecordingPaths
from vramlens.capture.torch_api import cuda_in_use
from vramlens.capture.warn import harmless
from vramlens.errors import UsageError
from vramlens.integrations.shared.kept_artifacts import keep
from vramlens.monitor import Monitor, Summary
from vramlens.monitor.scalars import fullest, scalars
from vramlens.program import install, snapshot
from vramlens.units import GIB

OnOutOfMemory = Callable[[str, "str | None"], object]
"""Called with the verdict and the recording's path."""
Trackers = Callable[[], Iterable[object]]
"""Gives the trackers in use, as ``kept_artifacts`` takes them. Asked only where something is kept:
a tracker may begin its run when it is asked for.
"""
_KEY = "vramlens/peak_bytes/"


class LoopMonitor:
    """A monitor that follows a training loop.

    Attributes:
        monitor: the monitor.
        leaks: the report on leaks, once the loop has ended; None where none was asked for.
    """

    def __init__(
        self,
        every: int = 50,
        *,
        record: str | os.PathLike[str] | None = None,
        leaks: bool = False,
        on_oom: bool | OnOutOfMemory = True,
        **options: Any,
    ) -> None:
        """Prepares.

        Args:
            every: log scalars after so many steps; 0 is never.
            record: a folder, or a ``.vram`` file, for a recording of an out-of-memory error, else
                of the loop's end.
            leaks: whether to look for what each step leaves behind.
            on_oom: whether verdict and recording of an out-of-memory error go to the tracker in
                use; or a function that gets them.
            options: for the ``Monitor``: interval, alerts, on_alert, command, webhook, quiet.
        """
        if every < 0:
            raise UsageError(f"every={every}: use a number of steps, or 0 for never")
        self.every = every
        self.monitor = Monitor(options.pop("interval", 1.0), **options)
        self.leaks: Any = None
        self._record = None if record is None else os.fspath(record)
        self._wants_leaks, self._on_oom = leaks, on_oom
        self._follower: Any = None
        self._steps = 0

    def begin(self) -> None:
        """Begins to watch."""
        if self._record is not None:
            install(self._record)
        if self._wants_leaks:
            self._follow_leaks()
        self.monitor.start()

    def end(self, trackers: Trackers = tuple, error: BaseException | None = None) -> Summary:
        """Ends, and gives the summary.

        Args:
            trackers: where verdicts are kept.
            error: what ended the loop; None where nothing did.
        """
        self._tell_leaks(trackers)
        if error is not None:
            self.failed(error, trackers)
        elif self._record is not None:
            self._record_end(self._record)
        self.monitor.stop()
        return self.monitor.summary()

    def stepped(self, count: int) -> dict[str, float]:
        """Ends a step; the scalars where it is time to log them, else nothing."""
        self._steps += 1
        self.monitor.step()
        if self._follower is not None:
            self._follower.step_ended(self._steps)
        if not self.every or count % self.every:
            return {}
        return self.scalars()

    def scalars(self) -> dict[str, float]:
        """The newest scalars, on rank 0 with the peaks of all ranks."""
        values = scalars(self.monitor)
        sample = self.monitor.latest
        device = None if sample is None else fullest(sample)
        peak_bytes = None if device is None else device.peak_bytes
        return {**values, **(peaks_of_ranks(peak_bytes) or {})}

    @harmless("reporting an out-of-memory error")
    def failed(self, error: BaseException, trackers: Trackers = tuple) -> None:
        """Hands on the verdict and the recording of an out-of-memory error; nothing of others."""
        verdict = verdict_in(error)
        path = getattr(error, "__vramlens_path__", None)
        if verdict is None or not self._on_oom:
            return
        if callable(self._on_oom):
            self._on_oom(verdict, path)
            return
        keep(trackers(), "out_of_memory", verdict, [] if path is None else [path], self._steps)

    @harmless("looking for leaks")
    def _follow_leaks(self) -> None:
        from vramlens.live.follow import LeakFollower

        torch = sys.modules.get("torch")
        if torch is not None:
            self._follower = LeakFollower()
            self._follower.torch_is_there(torch)

    @harmless("reporting leaks")
    def _tell_leaks(self, trackers: Trackers) -> None:
        follower, self._follower = self._follower, None
        self.leaks = None if follower is None else follower.conclusion()
        if follower is not None:
            follower.stop()
        if self.leaks is not None:
            keep(trackers(), "leaks", str(self.leaks), [], self._steps)

    @harmless("recording the end of training")
    def _record_end(self, output: str) -> None:
        if cuda_in_use() is not None:  # else there is nothing to record, and nothing to say
            snapshot(RecordingPaths(output, sys.argv[0]).next())


def verdict_in(error: BaseException) -> str | None:
    """The verdict that travels with an out-of-memory error; its own text where nothing was
    recorded; None for other errors.
    """
    notes = getattr(error, "__notes__", None) or [getattr(error, "__vramlens_note__", None)]
    ours = [note for note in notes if isinstance(note, str) and "vramlens" in note]
    if ours:
        return "\n".join(ours)
    is_out_of_memory = "OutOfMemoryError" in type(error).__name__ or "out of memory" in str(error)
    return str(error) if is_out_of_memory else None


@harmless("comparing the peaks of the ranks")
def peaks_of_ranks(peak_bytes: int | None) -> dict[str, float]:
    """Leaves this rank's peak, and gives on rank 0 the figures of all ranks; else {}.

    It goes through the key-value store of the process group. No collective is called: a rank that
    is late, or has ended, holds up nobody, and no byte is allocated on a GPU.

    ``memory/rank_peak_max_gib``, ``memory/rank_peak_min_gib`` and ``memory/worst_rank``, once every
    rank has left one.
    """
    group = initialized_group()
    if group is None or peak_bytes is None:
        return {}
    rank, world_size = group.get_rank(), group.get_world_size()
    store = group.distributed_c10d._get_default_store()
    store.set(f"{_KEY}{rank}", str(peak_bytes))
    keys = [f"{_KEY}{number}" for number in range(world_size)]
    if rank or world_size < 2 or not store.check(keys):
        return {}
    peaks = [int(entry) for entry in store.multi_get(keys)]
    worst = max(range(world_size), key=peaks.__getitem__)
    return {
        "memory/rank_peak_max_gib": peaks[worst] / GIB,
        "memory/rank_peak_min_gib": min(peaks) / GIB,
        "memory/worst_rank": float(worst),
    }
