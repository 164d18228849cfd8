"""The thread that writes a program's inside for ``vramlens top``, once a second; it never asks
the GPU anything.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from typing import Any

from vramlens.capture import torch_api
from vramlens.capture.memory.driver import Gpu
from vramlens.capture.memory.memory_now import host_memory
from vramlens.capture.memory.pytorch_memory import PyTorch
from vramlens.capture.process.own_thread import OwnEvent, OwnThread
from vramlens.capture.recording.output_path import rank_of_process
from vramlens.capture.recording.step_marks import StepCounter
from vramlens.capture.torch_api import Counters, counters, cuda_in_use
from vramlens.capture.triggers.on_import import when_imported
from vramlens.capture.triggers.user_folder import prepared_folder
from vramlens.capture.warn import harmless
from vramlens.monitor.allocator_counters import RecentPeak, room_bytes, used_devices
from vramlens.monitor.machine.device_memory import free_and_total, visible_gpus
from vramlens.monitor.machine.inside import (
    Inside,
    InsideDevice,
    inside_path,
    partial_path,
    remove_leftovers,
    start_of,
    write_inside,
)
from vramlens.monitor.place_in_job import place_of_process
from vramlens.monitor.step_growth import StepGrowth, steps_left
from vramlens.monitor.step_pace import StepPace

_INTERVAL_S = 1.0
_DEVICES_EVERY = 10
_NCCL_AT, _NCCL_EVERY = 3, 1000


class Publisher:
    """Writes this process's file until the program ends."""

    def __init__(
        self, steps: StepCounter | None = None, *, interval_s: float = _INTERVAL_S, path: str = ""
    ) -> None:
        self._interval_s, self._path = interval_s, path
        self.pid, self._started = os.getpid(), start_of(os.getpid())
        self._program = os.path.basename(
            getattr(sys.modules.get("__main__"), "__file__", None) or "python"
        )[:200]
        self._steps = steps
        self._pace = StepPace()
        self._job = place_of_process().job
        self._growth: dict[int, StepGrowth] = {}
        self._at_step: dict[int, int] = {}
        self._nccl: dict[int, int] = {}
        self._devices: list[int] = []
        self._uuids: dict[int, str | None] = {}
        self._recent: dict[int, RecentPeak] = {}
        self._round = 0
        self._over = OwnEvent()
        self._thread: OwnThread | None = None
        if steps is not None:
            steps.on_step(self.step_ended)

    @harmless("answering 'vramlens top'")
    def wait_for_gpu(self) -> None:
        """Begins as soon as the program uses a GPU; torch has been imported."""
        gpu = torch_api.connect()
        if gpu is not None and gpu.kind == "cuda":
            gpu.when_initialized(self.start)

    @harmless("answering 'vramlens top'")
    def start(self) -> None:
        """Begins, unless it has begun; a process in which it cannot work is left alone."""
        if self._thread is not None or self._started is None or self.pid != os.getpid():
            return
        if not self._path:
            folder = prepared_folder()
            remove_leftovers(folder)
            self._path = inside_path(self.pid, self._started, folder)
        self._thread = OwnThread(self._run)
        self._thread.start()
        atexit.register(self.stop)

    @harmless("ending the answers to 'vramlens top'")
    def stop(self) -> None:
        """Ends and takes the file away. In a forked child the parent's file stays."""
        if self.pid != os.getpid():
            # Nothing of the thread's is touched: it may have held a lock when the program forked.
            return
        self._over.set()
        if self._thread is not None and not self._thread.is_current:
            self._thread.join(1.0)
        for path in (self._path, partial_path(self._path)) if self._path else ():
            with contextlib.suppress(OSError):
                os.unlink(path)

    @harmless("following the steps")
    def step_ended(self, count: int) -> None:
        """Reads the counters between two steps, on the thread that ended the first: some ten
        microseconds.
        """
        cuda = cuda_in_use()
        if cuda is None or self.pid != os.getpid():
            return
        self._pace.add(count)
        for index in self._devices or used_devices(cuda):
            now = counters(cuda, index)
            if now is not None:
                self._at_step[index] = now.allocated_bytes
                self._growth.setdefault(index, StepGrowth()).add(count, now.allocated_bytes)
        if count == _NCCL_AT or count % _NCCL_EVERY == 0:
            self._ask_nccl()

    def _ask_nccl(self) -> None:
        # Here, where the program is well, and seldom: NCCL's locks may be held in a rank that
        # hangs, and NCCL's memory seldom changes once its communicators are up.
        pytorch = PyTorch()
        for index in self._devices:
            size = pytorch.with_nccl(index, pytorch.counters(index)).nccl_bytes
            if size is not None:
                self._nccl[index] = size

    def _run(self) -> None:
        while not self._over.is_set:
            self.write()
            self._over.wait(self._interval_s)

    @harmless("answering 'vramlens top'")
    def write(self) -> None:
        """Writes the file now."""
        if self._started is None or self.pid != os.getpid():
            return
        cuda = cuda_in_use()
        if cuda is not None and self._round % _DEVICES_EVERY == 0:
            self._devices = used_devices(cuda)
        self._round += 1
        step = (
            self._steps.count if self._steps is not None else 0
        )  # first: no figure is older than its step
        devices = [] if cuda is None else [self._device(cuda, index) for index in self._devices]
        host = host_memory()
        inside = Inside(
            pid=self.pid,
            started=self._started,
            time_us=time.time_ns() // 1000,
            step=step,
            rank=rank_of_process(),
            rss_bytes=host.rss_bytes,
            pinned_bytes=host.pinned_reserved_bytes,
            program=self._program,
            step_us=self._pace.step_us,
            job=self._job,
            devices=tuple(devices),
        )
        if not self._over.is_set:
            write_inside(self._path, inside)

    def _device(self, cuda: Any, index: int) -> InsideDevice:
        if index not in self._uuids:
            self._uuids[index] = _uuid(cuda, index)
        now = counters(cuda, index)
        if now is None:
            return InsideDevice(index, self._uuids[index])
        rate = self._growth[index].rate() if index in self._growth else None
        remaining_steps = None
        if rate is not None:
            remaining_steps = steps_left(
                rate, room_bytes(cuda, index, now, _free(cuda, index), self._lately(index, now))
            )
        return InsideDevice(
            index=index,
            uuid=self._uuids[index],
            allocated_bytes=now.allocated_bytes,
            reserved_bytes=now.reserved_bytes,
            peak_bytes=now.peak_bytes,
            nccl_bytes=self._nccl.get(index),
            step_bytes=self._at_step.get(index),
            growth_bytes=None if rate is None else rate.bytes_per_step,
            steps_left=remaining_steps,
            retries=now.retries,
            failures=now.failures,
        )

    def _lately(self, index: int, now: Counters) -> int:
        return self._recent.setdefault(index, RecentPeak()).add(now)


def publish_inside(steps: StepCounter | None = None) -> None:
    """Has this process tell ``vramlens top`` of its allocator as soon as it uses a GPU. Harmless
    and repeatable.

    Args:
        steps: the program's steps, for growth per step.
    """
    global _published
    if _published is not None and _published.pid == os.getpid():
        return
    _published = publisher = Publisher(steps)
    when_imported("torch", publisher.wait_for_gpu)


_published: Publisher | None = None


def _uuid(cuda: Any, index: int) -> str | None:
    gpu = _gpu(cuda, index)
    return None if gpu is None else gpu.uuid


def _free(cuda: Any, index: int) -> int | None:
    gpu = _gpu(cuda, index)
    figures = None if gpu is None else free_and_total(gpu)
    return None if figures is None else figures[0]


def _gpu(cuda: Any, index: int) -> Gpu | None:
    gpus = visible_gpus(cuda)
    return gpus[index] if index < len(gpus) else None
