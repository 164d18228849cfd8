"""What counters say at each step's end: memory that no Python object stands for, and so no chain
explains.

A counter that rises and falls again has grown by nothing: of each value only what no later value
fell below counts, as what that step left behind. Reading PyTorch's counters takes some ten
microseconds a device, asking the driver a
millisecond: both are rationed. A series that becomes long keeps every second value from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import median
from time import perf_counter, thread_time
from typing import Any

from vramlens.allowance import private_bytes
from vramlens.ground.program_errors import own_errors
from vramlens.live.counters import gpu_memory as gpus
from vramlens.live.counters.host_allocator import allocated_bytes
from vramlens.live.growth.looks import Looks
from vramlens.live.growth.pace import WARM_UP, Pace, pace_of
from vramlens.live.growth.ration import Ration

FEWEST_RISES = 6  # caches and workspaces grow in a few steps, and stop
STRETCHES, _FEWEST_READINGS = 8, 64
"""Of a run, in each of which a counter that rises does so, and readings in all. With half as many
stretches, a store that was full after three quarters of the run would grow in each; with twice as many,
what is in use at the moment would hide what stays.
"""
_FREE_SECONDS, _SHARE = 0.02, 0.001
_PRIVATE_FREE_SECONDS, _PRIVATE_SHARE = 0.005, 0.0005
_DRIVER_FREE_SECONDS, _DRIVER_SHARE = 0.03, 0.0005
_LONGEST, _MOST_MARKS = 512, 4096
_LEAST_RISE = 4096  # bytes a step
_PARTS, _FEWEST_PARTS = 4, 3
_FILLED = 0.8  # of the readings show a rise: then the middle one is the rate


class CounterSeries:
    """Values of one counter by the step at whose end they were read."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[int] = []
        self._apart = 1  # steps, at least

    def add(self, step: int, value: int) -> None:
        """Adds the newest value, unless the one before is too near."""
        if self.steps and step - self.steps[-1] < self._apart:
            return
        self.steps.append(step)
        self.values.append(value)
        if len(self.steps) > _LONGEST:
            self.steps, self.values = self.steps[::2], self.values[::2]
            self._apart *= 2

    def left_behind(self) -> dict[int, int]:
        """Bytes left behind by each reading's place: rises that no later value fell below again,
        after warm-up.
        """
        floor = list(accumulate(reversed(self.values), min))[::-1]
        return {
            place: floor[place] - floor[place - 1]
            for place, step in enumerate(self.steps)
            if place and step > WARM_UP and floor[place] > floor[place - 1]
        }

    @property
    def grown(self) -> int:
        """Bytes left behind in all."""
        return sum(self.left_behind().values())

    @property
    def is_often_read(self) -> bool:
        """Whether every stretch of the run has readings, and all together enough."""
        last = self.steps[-1] if self.steps else 0
        read = {(step - 1) * STRETCHES // last for step in self.steps if step > 0}
        return len(read) == STRETCHES and len(self.steps) >= _FEWEST_READINGS

    @property
    def rises_on(self) -> bool:
        """Whether it rose in three of four parts of the run, by more than Python's own lists and
        dicts do.
        """
        by_part = [0] * _PARTS
        length = self.steps[-1] - WARM_UP
        for place, size in self.left_behind().items():
            by_part[(self.steps[place] - WARM_UP - 1) * _PARTS // length] += size
        least_bytes = max(_LEAST_RISE * length // _PARTS, 1)
        return sum(size >= least_bytes for size in by_part) >= _FEWEST_PARTS

    def may_rise_on(self, steps: int) -> bool:
        """Whether it rose as growth does; where a part of the run has no reading, whether it rose at
        all by so many steps' worth.
        """
        parts_read = {(step - 1) * _PARTS // steps for step in self.steps if 0 < step <= steps}
        if len(parts_read) == _PARTS:
            return self.rises_on
        return self.rises_on or self.grown >= max(_LEAST_RISE * steps, 1)

    def pace(self) -> Pace | None:
        """How they came; None where that is not steady growth over enough steps. Readings may lie
        any steps apart.
        """
        steps, rises = self.steps, self.left_behind()
        newest = len(steps) - 1
        place_pace = pace_of(rises, newest, Looks.at_every_step(newest)) if steps else None
        if place_pace is None or not place_pace.is_steady or place_pace.steps < FEWEST_RISES:
            return None
        counted = [place for place in rises if place_pace.first <= place <= place_pace.last]
        if place_pace.filled >= _FILLED:
            rate = median(rises[place] / (steps[place] - steps[place - 1]) for place in counted)
        else:
            rate = sum(rises[place] for place in counted) / (
                steps[place_pace.last] - steps[place_pace.first - 1]
            )
        return replace(
            place_pace,
            first=steps[place_pace.first],
            last=steps[place_pace.last],
            bytes_per_step=round(rate),
        )


class StepCounters:
    """The counters of a program, by step.

    Attributes:
        gpu: the GPUs; None while the program uses none.
        requested, allocated, waiting, reserved: of each device; waiting is what is freed and awaits
            another stream.
        outside: of each device, what the driver counts beside PyTorch's memory.
        host: what the C library's allocator has handed out. Reading it walks all that is free there: a
            microsecond at first, 40 ms where a million small pieces are.
        private: what the process has for itself of the host's memory, which takes microseconds always.
        pinned, pinned_owned: page-locked memory of the host that is handed out; with what is kept
            for later.
        contexts: the step at which a context of this process was first seen on each device; 0
            before the watch.
        handed_over: by step, the number of the latest file descriptor that was handed to other
            processes.
        groups: process groups when the watch began.
        is_own: whether all that ``outside`` counts is this process's.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.gpu: gpus.ProcessGpus | None = None
        self.requested: dict[int, CounterSeries] = {}
        self.allocated: dict[int, CounterSeries] = {}
        self.waiting: dict[int, CounterSeries] = {}
        self.reserved: dict[int, CounterSeries] = {}
        self.outside: dict[int, CounterSeries] = {}
        self.pinned, self.pinned_owned = CounterSeries(), CounterSeries()
        self.host, self.private = CounterSeries(), CounterSeries()
        self.contexts: dict[int, int] = {}
        self.handed_over: list[tuple[int, int]] = []
        self.groups = 0
        self.is_own = True
        self._ration = Ration(_FREE_SECONDS, _SHARE)
        self._private_ration = Ration(_PRIVATE_FREE_SECONDS, _PRIVATE_SHARE)
        self._driver_ration = Ration(_DRIVER_FREE_SECONDS, _DRIVER_SHARE)
        self._driver_asked = False
        with own_errors():
            self.read(0)

    @property
    def rations(self) -> tuple[Ration, ...]:
        """What reading may take."""
        return self._ration, self._private_ration, self._driver_ration

    def may_have_grown(self, steps: int) -> bool:
        """Whether the counters of tensors' memory say that it grew, or do not say; PyTorch's
        count all of a GPU's, the C library's all of the host's. They are read once more, however
        long that takes: steps that are too short for a reading each have none of the present.

        Args:
            steps: that have ended.
        """
        with own_errors():
            self._read_all(steps)
        return not self.host.steps or any(
            series.may_rise_on(steps) for series in (self.host, *self.allocated.values())
        )

    @property
    def handed_out(self) -> dict[str, CounterSeries]:
        """By device, what its allocator has handed out for tensors."""
        on_gpus = {f"cuda:{device}": series for device, series in self.requested.items()}
        return {"cpu": self.host, **on_gpus}

    @property
    def often_read(self) -> dict[str, CounterSeries]:
        """By device, a counter of about that which was read often, if one was; on the host the process's
        memory, if the allocator's was not.
        """
        handed_out = self.handed_out
        if not self.host.is_often_read:
            handed_out["cpu"] = self.private
        return {device: series for device, series in handed_out.items() if series.is_often_read}

    def read(self, step: int) -> None:
        """Reads them at the end of a step, if there is time."""
        if self._private_ration.left >= 0:
            self._read_private(step)
        if self._ration.left < 0:
            return
        began = thread_time()
        used = self._read_all(step)
        self._ration.spent += thread_time() - began  # on a busy machine others' time is not ours
        if self.gpu is not None and self._driver_ration.left >= 0:
            self._read_driver(self.gpu, used, step)

    def _read_all(self, step: int) -> list[int]:
        """Reads what costs little; gives the devices that PyTorch uses."""
        size = allocated_bytes()
        if size is not None:
            self.host.add(step, size)
        number = handed_over_now()
        if number and (not self.handed_over or self.handed_over[-1][1] != number):
            self.handed_over.append((step, number))
            if len(self.handed_over) > _MOST_MARKS:
                self.handed_over = self.handed_over[::2]
        if self.gpu is None:
            self.gpu = gpus.find_gpu(self._torch)
            if self.gpu is None:
                return []
            self.groups = self.gpu.process_groups()
        return self._read_pytorch(self.gpu, step)

    def _read_private(self, step: int) -> None:
        began = thread_time()
        size = private_bytes()
        if size:
            self.private.add(step, size)
        self._private_ration.spent += thread_time() - began

    def _read_driver(self, gpu: gpus.ProcessGpus, devices: Sequence[int], step: int) -> None:
        """Reads what the driver counts beside PyTorch's memory."""
        asked_at = perf_counter()
        for device in devices:
            outside = gpu.outside(device)
            if outside is not None:
                self.is_own = self.is_own and outside.is_own
                self.outside.setdefault(device, CounterSeries()).add(step, outside.size_bytes)
        if self._driver_asked:  # the first answer has waited for the driver's library
            self._driver_ration.spent += perf_counter() - asked_at
        self._driver_asked = self._driver_asked or bool(devices)

    def _read_pytorch(self, gpu: gpus.ProcessGpus, step: int) -> list[int]:
        """Reads PyTorch's counters; gives the devices that it uses."""
        used = []
        for device in gpu.contexts():
            self.contexts.setdefault(device, step)
            counts = gpu.counts(device)
            if counts is None:
                continue
            if counts.reserved:
                used.append(device)
            for series, value in (
                (self.requested, counts.requested),
                (self.allocated, counts.allocated),
                (self.waiting, counts.active - counts.allocated),
                (self.reserved, counts.reserved),
            ):
                series.setdefault(device, CounterSeries()).add(step, value)
        pinned = gpu.pinned()
        if pinned is not None:
            self.pinned.add(step, pinned.active)
            self.pinned_owned.add(step, pinned.owned)
        return used


def handed_over_now() -> int:
    """How many file descriptors this process has offered to others so far (multiprocessing's
    ``DupFd``).
    """
    sharer = getattr(sys.modules.get("multiprocessing.resource_sharer"), "_resource_sharer", None)
    number = getattr(sharer, "_key", 0)
    return number if type(number) is int else 0
