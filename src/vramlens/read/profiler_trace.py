"""Reading a trace of PyTorch's profiler (Kineto's Chrome JSON, new or old) into columns."""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vramlens.errors import NotARecording, UnsafeInput
from vramlens.read.json_stream import JsonStream, Malformed
from vramlens.trace.profile import NONE, Kind, MemoryDevice, MemoryEvents, ProfilerTrace, Spans

# libkineto/include/ActivityType.h; in capitals as kineto wrote them up to PyTorch 1.12.
_KINDS = {
    "cpu_op": Kind.OPERATOR, "Operator": Kind.OPERATOR,
    "user_annotation": Kind.REGION,
    "cuda_runtime": Kind.RUNTIME, "cuda_driver": Kind.RUNTIME, "Runtime": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME, "xpu_driver": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME, "privateuse1_driver": Kind.RUNTIME,
    "python_function": Kind.PYTHON,
    "kernel": Kind.KERNEL, "Kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY, "Memcpy": Kind.COPY,
    "gpu_memset": Kind.FILL, "Memset": Kind.FILL,
}  # fmt: skip
_DEVICE_WORK = frozenset((Kind.KERNEL, Kind.COPY, Kind.FILL))
_MEMORY = {"[memory]": 0, "[OutOfMemory]": 1}  # torch/csrc/profiler/collection.cpp
# PyTorch before 1.13 gave regions the category of operators.
_REGIONS = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)#")
_FACTS = frozenset(
    {
        *(
            "schemaVersion",
            "deviceProperties",
            "distributedInfo",
            "with_stack",
            "profile_memory",
            "record_shapes",
        ),
        *("with_modules", "baseTimeNanoseconds", "cuda_runtime_version", "cuda_driver_version"),
    }
)
_NOT_A_TRACE = "is a Chrome trace, but not one from PyTorch's profiler"
# Sums of what is larger would not be exact: the year 2112, fifty days, 16 TiB.
_LATEST_US, _LONGEST_US, _LARGEST_BYTES = 2.0**52, 2.0**42, 1 << 44
_MOST_DEVICES = 256
_WIDTH = 9  # whole numbers of a span
_NO_DETAILS = (NONE, NONE, NONE, 0, NONE)  # correlation, external, sequence, backward, shapes
_LONGEST_SHAPES = 400
_MEMORY_WIDTH = 8


def read_profiler_trace(
    stream: BinaryIO, name: str, progress: Callable[[], None] | None = None
) -> ProfilerTrace | io.BufferedReader:
    """The trace, or the stream from its first byte on where it is some other JSON.

    What is whole in a truncated file is there; ``missing`` says that the rest is not.

    Raises:
        NotARecording: a Chrome trace of some other program.
        UnsafeInput: it holds a value nested too deeply, or more devices than there are.
    """
    text = JsonStream(stream, progress)
    columns = _Columns()
    try:
        events = _find_events(text, columns)
    except (Malformed, UnsafeInput):
        events = None
    if events is None:
        return text.rewound()
    text.keep_no_more()
    try:
        for event in events:
            columns.add(event)
        columns.facts.update(_facts(text, columns.in_object))
    except Malformed as error:
        columns.missing.append(_damage(columns, error))
    except UnsafeInput as error:
        raise UnsafeInput(f"{name}: {str(error).removeprefix(f'{name}: ')}") from None
    if not columns.count and not columns.memory_count:
        raise NotARecording(f"{name}: {_NOT_A_TRACE}")
    trace = columns.trace(name)
    devices = max(len(trace.memory_devices), len(np.unique(trace.spans.device)))
    if devices > _MOST_DEVICES:
        raise UnsafeInput(f"{name}: names {devices:,} devices; no machine has so many")
    return trace


def _find_events(text: JsonStream, columns: _Columns) -> Iterator[Any] | None:
    """The events, where the next value is a trace."""
    if (
        text.peek() == "["
    ):  # the profiler without Kineto (torch.autograd.profiler) writes nothing around its events
        events = text.elements()
        first = next(events, None)
        return chain((first,), events) if isinstance(first, dict) and "ph" in first else None
    for key in text.members():
        if key == "traceEvents":
            columns.in_object = True
            return text.elements() if text.peek() == "[" else None
        columns.keep_fact(key, text.value())
    return None


def _facts(text: JsonStream, in_object: bool) -> Iterator[tuple[str, Any]]:
    """What the object says after its events."""
    while in_object and text.take(","):
        key = text.value()
        if not isinstance(key, str) or not text.take(":"):
            raise Malformed("a key without a value", ended=text.peek() == "")
        value = text.value()
        if key in _FACTS:
            yield key, value
    if in_object and not text.take("}"):
        raise Malformed("} is missing", ended=text.peek() == "")


def _damage(columns: _Columns, error: Malformed) -> str:
    damage = "ends early" if error.ended else f"is damaged ({error})"
    return f"the file {damage}: only its first {columns.seen:,} events could be read"


def _kind_of(event: dict[str, Any]) -> Kind | None:
    """The kind of a span; None where it is not a program's."""
    category: Any = event.get("cat")
    kind = _KINDS.get(category)
    if kind is None and category is None and event.get("pid") == "CPU functions":
        return Kind.OPERATOR
    return kind


class _Columns:
    """Gathers events: the whole numbers of each in one run of one array, so that a bad event
    leaves nothing behind.
    """

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.missing: list[str] = []
        self.in_object = False
        self.seen = self.count = self.memory_count = self.unusable = 0
        self._names: dict[str, int] = {}
        self._shapes: dict[str, int] = {}
        self._threads: dict[tuple[Any, Any], int] = {}
        self._devices: dict[MemoryDevice, int] = {}
        self._numbers, self._times = array("q"), array("d")
        self._memory, self._memory_times = array("q"), array("d")
        self._windows: list[tuple[float, float]] = []
        self._whole = True

    def keep_fact(self, key: str, value: Any) -> None:
        if key in _FACTS:
            self.facts[key] = value

    def add(self, event: Any) -> None:
        """Keeps an event, if it is of use."""
        self.seen += 1
        try:
            if event["ph"] == "X" and event.get("name") not in _MEMORY:
                self._add_span(event)
            elif event.get("name") in _MEMORY:
                self._add_memory(event)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            self.unusable += 1
            del self._numbers[self.count * _WIDTH :], self._times[self.count * 2 :]
            del (
                self._memory[self.memory_count * _MEMORY_WIDTH :],
                self._memory_times[self.memory_count :],
            )

    def _add_span(self, event: dict[str, Any]) -> None:
        kind, name = _kind_of(event), event["name"]
        if kind is None:
            self._keep_window(event)
            return
        time, duration = event["ts"], event["dur"]
        if type(name) is not str:
            raise TypeError("a name that is not text")
        self._check_times(time, duration)
        thread = self._thread_of(event)
        args = event.get("args")
        details = _NO_DETAILS
        if args and kind != Kind.PYTHON:
            if kind == Kind.OPERATOR and name.startswith(_REGIONS):
                kind = Kind.REGION
            details = self._details(kind, args)
        device: Any = NONE
        if kind in _DEVICE_WORK:
            device = args.get("device", event.get("pid")) if args else event.get("pid")
        self._numbers.extend(
            (kind, self._names.setdefault(name, len(self._names)), thread, device, *details)
        )
        self._times.extend((time, duration))
        self.count += 1

    def _check_times(self, time: Any, duration: Any) -> None:
        if not (0 <= time <= _LATEST_US and 0 <= duration <= _LONGEST_US):
            raise ValueError("no such time")
        if self._whole and (type(time) is float or type(duration) is float):
            self._whole = float(time).is_integer() and float(duration).is_integer()

    def _thread_of(self, event: dict[str, Any]) -> int:
        thread = event.get("pid"), str(event.get("tid"))
        return self._threads.setdefault(thread, len(self._threads))

    def _keep_window(self, event: dict[str, Any]) -> None:
        """Keeps the time that the profiler was on, where the event tells it."""
        if event.get("cat") == "Trace":
            start_us = float(event["ts"])
            self._windows.append((start_us, start_us + float(event["dur"])))

    def _details(self, kind: Kind, args: dict[str, Any]) -> tuple[Any, ...]:
        """What a span's arguments say, in the order of ``_NO_DETAILS``."""
        external = args.get("External id", NONE)
        if external == NONE:
            external = args.get("external id", NONE)
        if kind != Kind.OPERATOR:
            return args.get("correlation", NONE), external, NONE, 0, NONE
        is_backward = args.get("Fwd thread id", 0) > 0
        shapes = NONE
        if "Input Dims" in args:
            text = str(args["Input Dims"])[:_LONGEST_SHAPES]
            shapes = self._shapes.setdefault(text, len(self._shapes))
        return NONE, external, args.get("Sequence number", NONE), is_backward, shapes

    def _add_memory(self, event: dict[str, Any]) -> None:
        time, args = event["ts"], event["args"]
        if not 0 <= time <= _LATEST_US:
            raise ValueError("no such time")
        size, allocated, reserved = (
            args["Bytes"],
            args.get("Total Allocated", NONE),
            args.get("Total Reserved", NONE),
        )
        if max(abs(size), abs(allocated), abs(reserved)) > _LARGEST_BYTES:
            raise ValueError("no such size")
        device = MemoryDevice(int(args["Device Type"]), int(args.get("Device Id", NONE)))
        thread = self._thread_of(event)
        address = int(args.get("Addr", 0)) & 0xFFFFFFFFFFFFFFFF
        self._memory.extend(
            (
                thread,
                self._devices.setdefault(device, len(self._devices)),
                size,
                address - (1 << 64) if address >> 63 else address,
                allocated,
                reserved,
                _MEMORY[event["name"]],
                0,
            )
        )
        self._memory_times.append(time)
        self.memory_count += 1

    def trace(self, source: str) -> ProfilerTrace:
        """What was gathered, in order of time."""
        times = np.array(self._times, np.float64).reshape(-1, 2)
        memory_times = np.array(self._memory_times, np.float64)
        start_us, memory_us = times[:, 0], memory_times
        origin = min(value.min() for value in (start_us, memory_us) if len(value))
        latest = max(value.max() for value in (start_us, memory_us) if len(value))
        resolution = 1000 if self._whole else max(2, int(np.ceil(np.spacing(latest) * 1000)))
        missing = list(self.missing)
        if self.unusable:
            missing.append(
                f"{self.unusable:,} of {self.seen:,} events have an invalid time, name or size"
            )
        return ProfilerTrace(
            source=source,
            facts=self.facts,
            names=list(self._names),
            shapes=list(self._shapes),
            threads=[(str(process), thread) for process, thread in self._threads],
            spans=self._spans(_nanoseconds(start_us - origin), _nanoseconds(times[:, 1])),
            memory=self._memory_events(_nanoseconds(memory_us - origin)),
            memory_devices=list(self._devices),
            began_us=self._began_us(origin),
            window_ns=self._window_ns(origin),
            resolution_ns=resolution,
            missing=tuple(missing),
        )

    def _began_us(self, origin_us: float) -> int:
        """The epoch's microseconds: times are told from a base since PyTorch 2.4
        (libkineto/src/output_json.cpp: ChromeTraceBaseTime).
        """
        base_ns = self.facts.get("baseTimeNanoseconds")
        base_us = base_ns // 1000 if isinstance(base_ns, int) and 0 <= base_ns < 1 << 62 else 0
        return base_us + int(origin_us)

    def _window_ns(self, origin_us: float) -> tuple[int, int] | None:
        """From the first window's beginning to the last one's end; None where there is none."""
        if not self._windows:
            return None
        first = min(first for first, _ in self._windows)
        last = max(last for _, last in self._windows)
        if abs(first) > _LATEST_US or abs(last) > _LATEST_US:
            return None
        return round((first - origin_us) * 1000), round((last - origin_us) * 1000)

    def _spans(self, start_ns: NDArray[np.int64], duration_ns: NDArray[np.int64]) -> Spans:
        order = np.lexsort((-duration_ns, start_ns))
        numbers = np.array(self._numbers, np.int64).reshape(-1, _WIDTH)[order].T.copy()
        return Spans(
            kind=numbers[0].astype(np.uint8),
            name=numbers[1],
            start_ns=start_ns[order],
            end_ns=(start_ns + duration_ns)[order],
            thread=numbers[2],
            device=numbers[3],
            correlation=numbers[4],
            external=numbers[5],
            sequence=numbers[6],
            backward=numbers[7] > 0,
            shapes=numbers[8],
        )

    def _memory_events(self, time_ns: NDArray[np.int64]) -> MemoryEvents:
        order = np.argsort(time_ns, kind="stable")  # those of one moment stay as they were written
        numbers = np.array(self._memory, np.int64).reshape(-1, _MEMORY_WIDTH)[order].T.copy()
        return MemoryEvents(
            time_ns=time_ns[order],
            thread=numbers[0],
            device=numbers[1],
            size=numbers[2],
            address=numbers[3].astype(np.uint64),
            allocated=numbers[4],
            reserved=numbers[5],
            failed=numbers[6] > 0,
        )


def _nanoseconds(time_us: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(time_us * 1000).astype(np.int64)
