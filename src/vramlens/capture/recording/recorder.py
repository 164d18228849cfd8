"""The recorder of a process: begins when the program first uses a GPU, writes recordings,
troubles nobody.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vramlens.capture import torch_api
from vramlens.capture.failure_facts.source_lines import source_at_failure
from vramlens.capture.names.module_marks import ModuleMarks
from vramlens.capture.names.module_paths import ModulePaths
from vramlens.capture.process.undisturbed import no_collection, no_other_thread
from vramlens.capture.recording.device_facts import DeviceFacts
from vramlens.capture.recording.output_path import OutputFile, RecordingPaths, keep, rank_of_process
from vramlens.capture.recording.process_facts import process_facts
from vramlens.capture.recording.recording_file import SCHEMA, write_recording
from vramlens.capture.recording.redact import Redaction
from vramlens.capture.recording.ring_size import default_max_events
from vramlens.capture.recording.sample_rows import SampleRows
from vramlens.capture.recording.step_marks import StepCounter
from vramlens.capture.torch_api import Allocator
from vramlens.capture.warn import harmless, say, say_once
from vramlens.ground.event_history import leave_out_before
from vramlens.units import counted, format_size

_WAIT_FOR_ANOTHER_DUMP_S = 60.0
_STEP_OF_NAMES = 2  # by then optimizers have their state
_SETTINGS = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)


_IN_TROUBLE = ("oom", "error", "sigterm", "sighup", "sigabrt", "signal")
"""The triggers at which the program may hang or have failed."""


@dataclass(frozen=True)
class WriteRequest:
    """A request to write a recording: for what, and how.

    Attributes:
        trigger: oom, error, sigterm, sighup, sigabrt, exit, signal, steps, every or api.
        failure: the request that failed, for meta.json.
        since_us: events before this moment (microseconds since the epoch) are left out.
        quiet: whether nothing is printed on success.
        keep_previous: whether the file that would be replaced is kept under another name.
        ending: how the program ends, in one line, for meta.json.
        redacted: whether what is private is left out, though the others of this process have it.
    """

    trigger: str
    failure: Mapping[str, Any] | None = None
    since_us: int = 0
    quiet: bool = False
    keep_previous: bool = False
    ending: str | None = None
    redacted: bool = False


class Recorder:
    """Records one process.

    Attributes:
        gpu: what it records; None until torch is imported.
        steps: the program's steps.
        recording: whether events are being recorded now.
        wanted_events: how many each ring is to hold from the next start on; None lets the host's
            memory decide.
        naming_seconds: what naming tensors that no model has may take; None for the usual.
        owners: gives ``owners.json`` for a kind of device, where leaks are watched.
    """

    def __init__(
        self,
        paths: RecordingPaths,
        *,
        max_events: int | None = None,
        redacted: bool = False,
        command: list[str] | None = None,
        marks_modules: bool = True,
    ) -> None:
        self.paths, self.steps = paths, StepCounter()
        self.gpu: Allocator | None = None
        self.recording = False
        self.facts: DeviceFacts | None = None
        self.wanted_events, self._command = max_events, command
        self._redaction: Redaction | None = None
        self._open_redactions = 0
        if redacted:
            self.redact()
        self._max_events = 0
        self._started_us = 0
        self._start_state: bytes | None = None
        self._by_the_program = False
        self._marks: ModuleMarks | None = None
        self._marks_modules = marks_modules
        self._paths = ModulePaths()
        self._samples = SampleRows()
        self.owners: Callable[[str], dict[str, Any] | None] | None = None
        self.naming_seconds: float | None = None
        self._earlier_names: list[dict[str, Any]] = []
        self._writing = threading.RLock()
        self._is_writing = False
        self._pid = os.getpid()

    def connect(self) -> None:
        """Looks at the torch that the program has imported."""
        self.gpu = torch_api.connect()

    def redact(self) -> None:
        """Leaves out what is private from now on, of every recording."""
        if self._redaction is None:
            self._redaction = Redaction(self._command or ())

    @property
    def is_redacting(self) -> bool:
        """Whether it leaves out what is private."""
        return self._redaction is not None or self._open_redactions > 0

    @contextlib.contextmanager
    def redacting(self, is_wanted: bool) -> Iterator[None]:
        """Leaves it out of every recording that is written inside, where that is wanted."""
        self._open_redactions += is_wanted
        try:
            yield
        finally:
            self._open_redactions -= is_wanted

    @harmless("starting to record")
    def start(self) -> None:
        """Begins to record now. The program uses a GPU already."""
        gpu = self.gpu
        if gpu is None or self.recording or self._pid != os.getpid():
            return
        if self.facts is None:
            self.facts = DeviceFacts(gpu)
        state = gpu.state()
        # Compressed: it waits in memory for as long as the program runs.
        self._start_state = None if state is None else zlib.compress(pickle.dumps(state, 4), 1)
        self._by_the_program = gpu.history_is_on()
        if not self._by_the_program:
            self._start_history(gpu)
        self._started_us = time.time_ns() // 1000
        # Those of an earlier block: other tensors may have their addresses by now.
        self._earlier_names = []
        self.recording = True
        self.mark_modules()
        if self._marks is not None:
            self._marks.start()

    def _start_history(self, gpu: Allocator) -> None:
        self._max_events = self.wanted_events or default_max_events(_rings(gpu))
        try:
            gpu.start_history(self._max_events)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            say(
                f"this allocator has no memory history ({reason}): the recording contains only"
                " counters"
            )

    @harmless("preparing module marks")
    def mark_modules(self) -> None:
        """Puts the hooks in their place, once and for all: compiled modules are compiled anew
        when hooks come or go.
        """
        if self._marks is not None or self.gpu is None or not self._marks_modules:
            return
        marker = self.gpu.marker()
        if marker is None:
            say_once(
                "this PyTorch cannot mark allocations with modules (2.10 can): names come only "
                "from addresses"
            )
            return
        self._marks = ModuleMarks(*marker, self._paths)
        self._marks.install()

    def become_copy(self) -> None:
        """In a forked copy of the process that only reads: it may write what its parent
        recorded.
        """
        self._pid = os.getpid()

    @harmless("stopping to record")
    def stop(self) -> None:
        """Records no more; what has been recorded is dropped."""
        if not self.recording or self.gpu is None:
            return
        self.recording = False
        if self._marks is not None:
            self._marks.stop()
        if not self._by_the_program:
            self.gpu.stop_history()

    def step_ended(self, count: int) -> None:
        """After each step."""
        if self._marks is not None:
            self._marks.forget_entered()
        if count == _STEP_OF_NAMES and self.recording and self.gpu is not None:
            # Many programs have let go of everything by the time that they end.
            now_us = time.time_ns() // 1000
            self._earlier_names = [
                {**tensor, "time_us": now_us} for tensor in self._names(self.gpu.kind) or []
            ]

    @harmless("sampling")
    def tick(self) -> None:
        """Takes a sample when one is due. Reads counters only: neither the GPU nor its queue
        notices.
        """
        gpu = self.gpu
        if (
            gpu is None
            or self.facts is None
            or not self._samples.is_due()
            or not gpu.is_initialized()
        ):
            return
        self._samples.add(self.steps.count, self.facts.look(), self.facts.host_rss_bytes())

    def write(self, request: WriteRequest, path: str | None = None) -> dict[str, Any]:
        """Writes a recording of now.

        Args:
            path: the file; by default the process's own.

        Returns:
            ``{"path": …}``, or ``{"error": why not}``; never raises.
        """
        if self._pid != os.getpid():
            return {"error": "this is a forked child, and its parent records"}
        if not self._writing.acquire(timeout=_WAIT_FOR_ANOTHER_DUMP_S):
            return {"error": "another recording is being written"}
        if self._is_writing:  # on this very thread: a failure, or a finalizer, in the middle of it
            self._writing.release()
            return {"error": "a recording is being written"}
        self._is_writing = True
        try:
            return self._write(request, path)
        except Exception as error:
            reason = _reason_of(error)
            if request.trigger != "api":  # whoever called is told
                say(f"no recording was written to {path or self.paths.folder}: {reason}")
            return {"error": reason}
        finally:
            self._is_writing = False
            self._writing.release()

    def _write(self, request: WriteRequest, path: str | None) -> dict[str, Any]:
        if self.gpu is None or not self.gpu.is_initialized():
            return {"error": "the program has not used a GPU yet"}
        target = os.path.abspath(path or self.paths.next())
        # To open a pipe is to wait for who reads it.
        if os.path.exists(target) and not os.path.isfile(target):
            raise OSError(0, f"{target} is not a regular file")
        output = OutputFile(self.paths, target)
        began = time.perf_counter()
        with no_collection():
            events, has_wrapped = self._write_parts(self.gpu, request, output, began)
        seconds = time.perf_counter() - began
        if request.failure is not None:
            self.paths.wrote_failure(output.path)
        if not request.quiet:
            size = format_size(os.path.getsize(output.path))
            overwritten = ", earlier events overwritten" if has_wrapped else ""
            say(
                f"wrote {output.path} ({size}, {counted(events, 'event')}{overwritten};"
                f" the program paused {seconds:.1f} s)"
            )
        return {"path": output.path, "seconds": round(seconds, 3)}

    def _write_parts(
        self, gpu: Allocator, request: WriteRequest, output: OutputFile, began: float
    ) -> tuple[int, bool]:
        """Writes the file; how many events are in it, and whether earlier ones were overwritten.

        When it returns, the snapshot is gone: the collector, on again, would first look at all of
        it.
        """
        if self.facts is None:
            self.facts = DeviceFacts(gpu)
        self.facts.look_at_the_end(in_trouble=request.trigger in _IN_TROUBLE)
        # The names before the snapshot: it is millions of objects more.
        parts = self._parts(gpu, self.facts, request.trigger)
        snapshot = gpu.snapshot()
        if request.since_us:
            leave_out_before(snapshot, request.since_us)
        meta = {**self._meta(gpu, snapshot, request), "ending": request.ending}
        start = None if self._start_state is None else zlib.decompress(self._start_state)
        redaction = self._redaction_of(request)
        if redaction is not None:
            parts, start = _redacted(redaction, snapshot, meta, parts, start)
        os.makedirs(os.path.dirname(output.path), exist_ok=True)
        if request.keep_previous and os.path.exists(output.path):
            keep(output.path, self.paths.previous())
        meta["dump_seconds"] = round(time.perf_counter() - began, 3)
        parts = {"meta": meta, **parts}
        check = None if redaction is None else redaction.check
        write_recording(output.path, snapshot, parts, start, put=output.put, check=check)
        events = sum(len(trace) for trace in snapshot.get("device_traces", ()))
        snapshot.clear()
        return events, any(meta["wrapped"].values())

    def _redaction_of(self, request: WriteRequest) -> Redaction | None:
        """What takes out what is private; None where nobody wants that."""
        is_wanted = request.redacted or self._open_redactions > 0
        return self._redaction or (Redaction(self._command or ()) if is_wanted else None)

    def _parts(self, gpu: Allocator, facts: DeviceFacts, trigger: str) -> dict[str, Any]:
        """The contents of a recording beside its snapshot and meta data."""
        names = self._names(gpu.kind, with_garbage=trigger == "oom") or []
        owners = None if self.owners is None else self.owners(gpu.kind)
        parts = {
            "names": {"tensors": [*self._earlier_names, *names]},
            "ledger": facts.ledgers(),
            "samples": self._samples.to_dict(),
        }
        if owners is not None:
            parts["owners"] = owners
        return parts

    @harmless("naming tensors")
    def _names(self, kind: str, *, with_garbage: bool = False) -> list[dict[str, Any]]:
        from vramlens.capture.names.tensor_names import named_tensors

        with no_other_thread():
            tensors = named_tensors(
                device_type=kind,
                root_names=self._paths.root_names,
                search_seconds=self.naming_seconds,
                with_garbage=with_garbage,
            )
            return [tensor.to_dict() for tensor in tensors]

    def _meta(
        self, gpu: Allocator, snapshot: Mapping[str, Any], request: WriteRequest
    ) -> dict[str, Any]:
        from vramlens import __version__

        facts = self.facts
        devices = facts.devices() if facts is not None else {}
        main: dict[str, Any] = next(iter(devices.values()), {})
        return {
            "schema": SCHEMA,
            "vramlens": __version__,
            **gpu.versions(),
            "driver": facts.driver_version if facts is not None else None,
            **process_facts(self._command),
            "trigger": request.trigger,
            "device_name": main.get("name"),
            "total_bytes": {
                index: device_facts["total_bytes"] for index, device_facts in devices.items()
            },
            "devices": devices,
            "settings": {name: os.environ[name] for name in _SETTINGS if name in os.environ},
            "max_events": self._max_events or None,
            "recorded_by_the_program": self._by_the_program,
            "wrapped": self._wrapped(snapshot),
            "step": self.steps.count,
            "step_source": self.steps.source,
            "module_marks": self._marks is not None and self._marks.is_on,
            "autocast": self._marks is not None and self._marks.has_seen_autocast,
            "oom": _with_source(request.failure, snapshot),
            "started_us": self._started_us,
            "written_us": time.time_ns() // 1000,
        }

    def _wrapped(self, snapshot: Mapping[str, Any]) -> dict[str, bool | None]:
        """For each device with events, whether the oldest ones were overwritten."""
        settings = snapshot.get("allocator_settings", {})
        overflowed = bool(settings.get("trace_alloc_overflowed"))
        max_entries = settings.get("trace_alloc_max_entries") or self._max_events
        return {
            str(device): overflowed or _is_full(len(trace), max_entries)
            for device, trace in enumerate(snapshot.get("device_traces", ()))
            if trace
        }


def _with_source(
    failure: Mapping[str, Any] | None, snapshot: Mapping[str, Any]
) -> dict[str, Any] | None:
    """What is known of a failure, with the source of the lines that hold the most, and of those that asked in vain."""
    return None if failure is None else {**failure, "source": source_at_failure(snapshot)}


def _reason_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"


def _redacted(
    redaction: Redaction,
    snapshot: dict[str, Any],
    meta: dict[str, Any],
    parts: dict[str, Any],
    start: bytes | None,
) -> tuple[dict[str, Any], bytes | None]:
    """The parts and the state at the start without what is private; snapshot and meta data are
    rewritten in place.
    """
    redaction.look_again()
    redacted_parts = redaction.recording(snapshot, meta, parts)
    if start is not None:
        state = pickle.loads(start)  # this process's own
        redaction.snapshot(state)
        start = pickle.dumps(state, 4)
    return redacted_parts, start


def _is_full(events: int, room: int) -> bool | None:
    """True where a ring of this room has wrapped; None where its room is not known: the program
    made it.
    """
    return events >= room if room else None


def _rings(gpu: Allocator) -> int:
    """The number of devices' rings that this process may fill: under a launcher each process has
    its own device.
    """
    return 1 if rank_of_process() is not None else gpu.device_count()
