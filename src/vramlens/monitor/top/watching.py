"""MachineWatch a machine: look after look, with alerts, and handed on to whoever else wants to see
each.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any, Protocol, TextIO

from vramlens.capture.warn import harmless
from vramlens.errors import InputError
from vramlens.monitor.alerts.actions import Actions
from vramlens.monitor.alerts.alerts import Alert, Values, Watch, program_figures
from vramlens.monitor.alerts.rules import Rule
from vramlens.monitor.machine.machine import DeviceNow, Machine, MachineNow, ProcessNow
from vramlens.monitor.place_in_job import place_of_machine
from vramlens.monitor.top.history import History
from vramlens.schema import SCHEMA


class Sink(Protocol):
    """Whoever wants to see each look at the machine."""

    def take(self, now: MachineNow) -> None: ...

    def close(self) -> None: ...


class MachineWatch:
    """Looks at the machine, keeps its history, sets off alerts and hands on what was seen.

    Attributes:
        now: the newest look.
        alerts: the newest alerts, at most twenty.
        ended: whether the one process that is watched has ended.
    """

    def __init__(
        self,
        *,
        pid: int | None = None,
        rules: Iterable[Rule] = (),
        actions: Actions | None = None,
        sinks: Iterable[Sink] = (),
        machine: Machine | None = None,
    ) -> None:
        self._machine = machine or Machine()
        self.pid, self.history, self._sinks = pid, History(), list(sinks)
        self._watch, self._actions = Watch(rules), actions
        self.alerts: list[Alert] = []
        self.now: MachineNow | None = None
        self.ended = False
        self._was_seen = False

    def look(self) -> MachineNow:
        """Looks once.

        Raises:
            InputError: the one process that is to be watched is not on any GPU, at the first look.
        """
        now = self._machine.look()
        if self.pid is not None:
            now = self._only(now, self.pid)
        self.now = now
        self.history.add(now)
        for alert in self._watch.look(values_of(now)) if self._watch.rules else ():
            self.alerts.append(alert)
            del self.alerts[:-20]
            if self._actions is not None:
                self._actions.do(alert)
        for sink in self._sinks:
            _hand(sink, now)
        return now

    def close(self) -> None:
        """Ends what was begun: files are whole, the alerts' command has run."""
        for sink in self._sinks:
            _close(sink)
        if self._actions is not None:
            self._actions.finish()

    def _only(self, now: MachineNow, pid: int) -> MachineNow:
        devices = []
        for device in now.devices:
            processes = tuple(
                process
                for process in device.processes or ()
                if pid == process.pid or (process.inside is not None and pid == process.inside.pid)
            )
            if processes:
                devices.append(replace(device, processes=processes))
        if devices:
            self._was_seen = True
        elif not self._was_seen:
            raise InputError(_why_not(now, pid))
        else:
            self.ended = not _is_alive(pid)
        return replace(now, devices=tuple(devices))


def values_of(now: MachineNow) -> list[Values]:
    """The figures that rules watch: of each GPU, each program on it, and the host."""
    values = []
    machine = place_of_machine()
    for device in now.devices:
        gpu: dict[str, float | None] = {
            "used": device.used_bytes,
            "free": device.free_bytes,
            "gpu": device.gpu_percent,
            "temperature": device.temperature_c,
            "power": device.power_w,
        }
        values.append(Values(f"GPU {device.name}", gpu, device.total_bytes, machine))
        for process in device.processes or ():
            memory = process.memory_on(device)
            inside = process.inside
            if memory is None or inside is None:
                continue
            figures = program_figures(memory, inside.step_us)
            subject = f"process {process.pid} on GPU {device.name}"
            place = replace(machine, job=inside.job, rank=inside.rank)
            values.append(Values(subject, figures, device.total_bytes, place))
    host = now.host
    return [*values, Values("the host", {"host": host.used_bytes}, host.total_bytes, machine)]


def machine_dict(now: MachineNow) -> dict[str, Any]:
    """All figures, ready for JSON."""
    return {
        "schema": SCHEMA,
        "time_us": now.time_us,
        "hostname": place_of_machine().host,
        "driver": now.driver_version,
        "devices": [_device_dict(device) for device in now.devices],
        "host": {name: getattr(now.host, f"{name}_bytes") for name in ("total", "available")},
        "notes": list(now.notes),
    }


def _device_dict(device: DeviceNow) -> dict[str, Any]:
    entry = asdict(replace(device, processes=()))
    processes = device.processes
    entry["kinds"] = device.kinds()
    entry["processes"] = (
        None if processes is None else [_process_dict(process, device) for process in processes]
    )
    entry["notes"] = list(device.notes)
    return entry


def _process_dict(process: ProcessNow, device: DeviceNow) -> dict[str, Any]:
    entry = asdict(replace(process, inside=None))
    memory = process.memory_on(device)
    entry["inside"] = None
    if process.inside is not None and memory is not None:
        inside = process.inside
        entry["inside"] = {
            **asdict(memory),
            "pid": inside.pid,
            "time_us": inside.time_us,
            "step": inside.step,
            "rank": inside.rank,
            "job": inside.job,
            "step_us": inside.step_us,
            "pinned_bytes": inside.pinned_bytes,
        }
    return entry


class JsonLines:
    """Writes each look as one small line of JSON: keys that nobody knows a value for are left out.

    A file that was moved away or removed, as logrotate does, is begun anew under its name.

    Raises:
        InputError: the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._file = self._opened()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from None

    def _opened(self) -> TextIO:
        # Open for as long as it watches.
        return open(self._path, "a", encoding="utf-8")

    def take(self, now: MachineNow) -> None:
        """Adds a line; whoever reads meanwhile sees whole lines only."""
        if self._has_moved():
            # Opened first: where that fails, as on a full disk, later looks try again.
            moved, self._file = self._file, self._opened()
            moved.close()
        content = _without_unknown(machine_dict(now))
        self._file.write(json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n")
        self._file.flush()

    def _has_moved(self) -> bool:
        """True if the path is another file now, or none."""
        opened = os.fstat(self._file.fileno())
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            return True
        return (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _without_unknown(content: Any) -> Any:
    """The same without keys whose value is None, [] or {}."""
    if isinstance(content, dict):
        cleaned_fields = {key: _without_unknown(entry) for key, entry in content.items()}
        return {key: entry for key, entry in cleaned_fields.items() if entry not in (None, [], {})}
    if isinstance(content, list):
        return [_without_unknown(entry) for entry in content]
    return content


def run_every(
    watching: MachineWatch, interval_s: float, show: Callable[[MachineNow], bool]
) -> None:
    """Looks every interval and shows it, until ``show`` says that it is enough, or the watched
    process has ended.
    """
    due = time.monotonic()
    while show(watching.look()) and not watching.ended:
        due = max(due + interval_s, time.monotonic())
        time.sleep(due - time.monotonic() if due > time.monotonic() else 0)


@harmless("handing on the figures")
def _hand(sink: Sink, now: MachineNow) -> None:
    sink.take(now)


@harmless("ending to hand on the figures")
def _close(sink: Sink) -> None:
    sink.close()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _why_not(now: MachineNow, pid: int) -> str:
    if not now.devices:
        reason = " ".join(now.notes) or "there is no GPU here."
        return f"process {pid} cannot be watched: {reason}".rstrip(".")
    if not _is_alive(pid):
        return f"there is no process {pid}: 'vramlens top --once' lists the processes on the GPUs"
    return f"process {pid} is not on any GPU: 'vramlens top --once' lists the processes that are"
