"""The monitor of a program: a thread that reads counters once a second and changes nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from vramlens.argument_types import (
    command_words,
    flag,
    function_given,
    optional,
    seconds,
    several,
    takes,
    text,
    texts,
)
from vramlens.capture.memory.driver import Gpu, driver
from vramlens.capture.memory.memory_now import HostMemory, host_memory
from vramlens.capture.process.own_thread import started_without_signals
from vramlens.capture.torch_api import counters, cuda_in_use
from vramlens.capture.warn import harmless
from vramlens.errors import UsageError
from vramlens.monitor.alerts.actions import Actions, Callback
from vramlens.monitor.alerts.alerts import Alert, Values, Watch, program_figures
from vramlens.monitor.alerts.rules import parse_rule
from vramlens.monitor.allocator_counters import RecentPeak, room_bytes, used_devices
from vramlens.monitor.machine.device_memory import free_and_total, visible_gpus
from vramlens.monitor.monitor_samples import DeviceSample, MonitorSamples, Sample
from vramlens.monitor.place_in_job import place_of_process
from vramlens.monitor.scalars import LogFunction, Scalars, log_function, scalars
from vramlens.monitor.step_growth import StepGrowth, steps_left
from vramlens.monitor.step_pace import StepPace
from vramlens.monitor.summary import Extremes, Summary

_SHORTEST_S, _LONGEST_S = 0.01, 86400
_MOST_ALERTS = 100
_DEVICES_EVERY = 10
_LOGGED_EVERY = 50
_THREAD_ENDS_WITHIN_S = 2.0
_COMMANDS_END_WITHIN_S = 2.0
"""How long the end of the monitor waits for an alert's command: the program has more to do."""


class Monitor:
    """Watches the memory of this program's GPUs and of its host, once a second, on a thread of its
    own.

    It reads PyTorch's counters, asks the driver and reads /proc: the GPU's queue, the program's
    random numbers and tensors are not touched, CUDA is not initialised, torch is not imported. It
    may begin before the program uses a GPU.

        with vramlens.Monitor(alerts=["used > 92%", "growth > 5MiB/step"]) as monitor:
            for batch in loader:
                train(batch)
                monitor.step()
        print(monitor.summary())

    Attributes:
        interval: seconds between two samples.
        samples: what was seen, thinned out where it is much.
        latest: the newest sample; None before the first.
        alerts: what was set off, in order; at most the last 100.
    """

    @takes(
        interval=seconds,
        alerts=texts,
        on_alert=function_given,
        command=optional(command_words),
        webhook=optional(text),
        quiet=flag,
        loggers=several,
    )
    def __init__(
        self,
        interval: float = 1.0,
        *,
        alerts: Iterable[str] = (),
        on_alert: Callback | None = None,
        command: str | Sequence[str] | None = None,
        webhook: str | None = None,
        quiet: bool = False,
        loggers: Iterable[object] = (),
    ) -> None:
        """Prepares; ``start``, or a ``with`` block, begins.

        Args:
            interval: seconds between two samples.
            alerts: rules such as ``"used > 92%"``, ``"free < 2GiB for 30s"``, ``"growth >
                5MiB/step"``.
            on_alert: called with the ``Alert``, on the monitor's thread.
            command: a command to start on an alert, without a shell; its last argument is the
                alert's sentence.
            webhook: an http or https address that gets the alert as JSON.
            quiet: whether the line on standard error is left out.
            loggers: where scalars go every 50 steps and at the end: Lightning's loggers, a
                ``SummaryWriter``, a W&B run, ``mlflow``, an ``Accelerator``, or functions of
                scalars and step. A copy of the monitor has none.

        Raises:
            UsageError: a rule, the interval, the command, the address or a logger is wrong.
        """
        if not _SHORTEST_S <= interval <= _LONGEST_S:
            raise UsageError(
                f"an interval of {interval!r} seconds: use {_SHORTEST_S} to {_LONGEST_S}"
            )
        self.interval = float(interval)
        self._watch = Watch(parse_rule(rule) for rule in alerts)
        options: dict[str, Any] = {"say_line": None} if quiet else {}
        self._actions = Actions(callback=on_alert, command=command, webhook=webhook, **options)
        ways = {"on_alert": on_alert, "command": command, "webhook": webhook, "quiet": quiet}
        self._made_with: dict[str, Any] = {
            "alerts": [rule.text for rule in self._watch.rules],
            **ways,
        }
        self._log_functions = [log_function(logger) for logger in loggers]
        self._listeners: list[Callable[[Sample], object]] = []
        self.samples = MonitorSamples()
        self.latest: Sample | None = None
        self.alerts: list[Alert] = []
        self._steps = 0
        self._pace = StepPace()
        self._growth: dict[int, StepGrowth] = {}
        self._recent: dict[int, RecentPeak] = {}
        self._extremes: dict[int, Extremes] = {}
        self._host_peaks: tuple[int | None, int | None] = (None, None)
        self._devices: list[int] = []
        self._began = self._ended = 0.0
        self._cpu_s = 0.0
        self._pid = os.getpid()
        self._looking = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has not begun: launchers that spawn processes, and searches that copy a
        trainer, take it along.
        """
        return partial(type(self), self.interval, **self._made_with), ()

    def start(self) -> Monitor:
        """Begins, and gives the monitor back; one that runs already goes on."""
        if self._thread is not None and self._thread.is_alive() and self._pid == os.getpid():
            return self
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._actions.begin_anew()
        self._over = threading.Event()
        self._looking = threading.Lock()
        self._began = self._began or time.monotonic()
        self._begin()
        return self

    @harmless("starting to watch memory")
    def _begin(self) -> None:
        thread = threading.Thread(target=self._run, name="vramlens-monitor", daemon=True)
        # Where the system allows no further thread, the program runs unwatched.
        started_without_signals(thread.start)
        self._thread = thread

    @harmless("ending to watch memory")
    def stop(self) -> None:
        """Takes a last sample and ends the thread. A second call does nothing; in a forked
        child, nothing.
        """
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return
        self._over.set()
        if thread is not threading.current_thread():
            thread.join(_THREAD_ENDS_WITHIN_S)
        if thread is threading.current_thread() or not thread.is_alive():
            self.sample()  # else the driver does not answer the thread, and would not answer here
            if not self._steps or self._steps % _LOGGED_EVERY:
                self._log()
        self._ended = time.monotonic()
        self._actions.finish(_COMMANDS_END_WITHIN_S)

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @harmless("following the steps")
    def step(self) -> None:
        """Ends a step: reads the counters, some ten microseconds, so that growth by step can be
        told.
        """
        if self._pid != os.getpid():
            return
        self._steps += 1
        self._pace.add(self._steps)
        self._measure_growth()
        if self._steps % _LOGGED_EVERY == 0:
            self._log()

    def _measure_growth(self) -> None:
        cuda = cuda_in_use()
        if cuda is None:
            return
        if not self._devices or self._steps % _DEVICES_EVERY == 0:
            self._devices = used_devices(cuda)
        for index in self._devices:
            now = counters(cuda, index)
            if now is not None:
                self._growth.setdefault(index, StepGrowth()).add(self._steps, now.allocated_bytes)

    def _log(self) -> None:
        """Writes the newest scalars to the loggers; what one raises becomes one warning."""
        values = scalars(self) if self._log_functions else {}
        for write in self._log_functions if values else ():
            _write(write, values, self._steps)

    def on_sample(self, listener: Callable[[Sample], object]) -> None:
        """Has ``listener`` called with each sample, on the monitor's thread; what it raises
        becomes one warning.
        """
        self._listeners.append(listener)

    @harmless("sampling")
    def sample(self) -> Sample | None:
        """Takes a sample now, on the calling thread, and gives it back; None in a forked child."""
        if self._pid != os.getpid():
            return None
        with self._looking:
            sample = self._look()
            self.latest = sample
            self.samples.add(sample)
            for device in sample.devices:
                extremes = self._extremes.get(device.device)
                if extremes is None:
                    self._extremes[device.device] = Extremes(device)
                else:
                    extremes.add(device)
            peaks = (
                max(filter(None, pair), default=None)
                for pair in zip(
                    self._host_peaks, (sample.rss_bytes, sample.pinned_bytes), strict=True
                )
            )
            self._host_peaks = (next(peaks), next(peaks))
            alerts = self._watch.look(values_of(sample)) if self._watch.rules else []
        for alert in alerts:
            self.alerts.append(alert)
            del self.alerts[:-_MOST_ALERTS]
            self._actions.do(alert)
        for listener in self._listeners:
            _tell(listener, sample)
        return sample

    def summary(self) -> Summary:
        """The summary so far; also while it runs."""
        now = self._ended if self._thread is None and self._ended else time.monotonic()
        notes = []
        if not self._extremes:
            nvml, reason = driver()
            notes.append(reason if nvml is None else "No GPU is visible to this process.")
        peak_rss_bytes, peak_pinned_bytes = self._host_peaks
        return Summary(
            seconds=now - self._began if self._began else 0.0,
            samples=self.samples.count,
            steps=self._steps,
            devices=tuple(self._extremes[device].summary() for device in sorted(self._extremes)),
            peak_rss_bytes=peak_rss_bytes,
            peak_pinned_bytes=peak_pinned_bytes,
            alerts=tuple(self.alerts),
            cpu_seconds=self._cpu_s,
            notes=tuple(notes),
        )

    def _run(self) -> None:
        over, due = self._over, time.monotonic()
        while not over.is_set():
            self.sample()
            self._cpu_s = time.thread_time()
            # The next whole interval: a machine that slept, or a long pause of the interpreter, is
            # not caught up with.
            due = max(due + self.interval, time.monotonic())
            over.wait(due - time.monotonic())

    def _look(self) -> Sample:
        cuda = cuda_in_use()
        gpus = {gpu.index: gpu for gpu in visible_gpus(cuda)}
        if cuda is not None and (not self._devices or self.samples.count % _DEVICES_EVERY == 0):
            self._devices = used_devices(cuda)
        indices = self._devices if cuda is not None and self._devices else list(gpus)
        devices = [self._device(cuda, index, gpus.get(index)) for index in indices]
        host: HostMemory = host_memory()
        return Sample(
            time_us=time.time_ns() // 1000,
            step=self._steps,
            devices=tuple(devices),
            rss_bytes=host.rss_bytes,
            host_total_bytes=host.total_bytes,
            host_available_bytes=host.available_bytes,
            pinned_bytes=host.pinned_reserved_bytes,
            step_us=self._pace.step_us,
        )

    def _device(self, cuda: Any, index: int, gpu: Gpu | None) -> DeviceSample:
        name, free, total = None, None, None
        if gpu is not None:
            name = gpu.name
            free, total = free_and_total(gpu) or (None, None)
        now = None if cuda is None else counters(cuda, index)
        if now is None:
            return DeviceSample(index, name, total, free)
        peak = self._recent.setdefault(index, RecentPeak()).add(now)
        rate = self._growth[index].rate() if index in self._growth else None
        remaining_steps = (
            None if rate is None else steps_left(rate, room_bytes(cuda, index, now, free, peak))
        )
        return DeviceSample(
            device=index,
            name=name,
            total_bytes=total,
            free_bytes=free,
            allocated_bytes=now.allocated_bytes,
            reserved_bytes=now.reserved_bytes,
            peak_bytes=now.peak_bytes,
            retries=now.retries,
            failures=now.failures,
            growth_bytes=None if rate is None else rate.bytes_per_step,
            steps_left=remaining_steps,
        )


@harmless("logging memory")
def _write(write: LogFunction, values: Scalars, step: int) -> None:
    write(values, step)


@harmless("calling a listener of the monitor")
def _tell(listener: Callable[[Sample], object], sample: Sample) -> None:
    listener(sample)


def values_of(sample: Sample) -> list[Values]:
    """The figures that rules watch: of each GPU, and the host."""
    values = []
    place = place_of_process()
    for device in sample.devices:
        figures = {
            "used": device.used_bytes,
            "free": device.free_bytes,
            **program_figures(device, sample.step_us),
        }
        values.append(Values(f"GPU {device.device}", figures, device.total_bytes, place))
    used = None
    if sample.host_total_bytes is not None and sample.host_available_bytes is not None:
        used = sample.host_total_bytes - sample.host_available_bytes
    host = {"host": used, "rss": sample.rss_bytes, "pinned": sample.pinned_bytes}
    return [*values, Values("the host", host, sample.host_total_bytes, place)]
