"""Reading what Nsight Systems recorded (``nsys export --type sqlite``) as a profiler's trace.

Tables and columns: NVIDIA's "SQLite Export Schema Reference". Only plain columns of plain tables
are asked for; a file may come from anyone.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from vramlens.errors import InputError, NotARecording, UnsafeInput
from vramlens.trace.profile import NONE, Kind, MemoryDevice, MemoryEvents, ProfilerTrace, Spans

MAGIC = b"SQLite format 3\0"
_CUDA = 1  # torch/headeronly/core/DeviceType.h
_DEVICE_MEMORY = (2, 3, 5)  # ENUM_CUDA_MEM_KIND: device, array, device static
_FREE = 1  # ENUM_CUDA_DEV_MEM_EVENT_OPER
_MOST_ROWS = 20_000_000
_LARGEST_BYTES, _LATEST_NS, _MOST_DEVICES = 1 << 44, 1 << 60, 256
_LONGEST_NAME = 2000
_DRIVER_LEVEL = (
    "what the driver handed out is all that Nsight Systems sees: PyTorch's segments, not tensors"
)
_KERNELS = (
    ("CUPTI_ACTIVITY_KIND_KERNEL", Kind.KERNEL, "shortName"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", Kind.COPY, "copyKind"),
    ("CUPTI_ACTIVITY_KIND_MEMSET", Kind.FILL, "value"),
)
# ENUM_CUDA_MEMCPY_OPER
_COPIES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}


def looks_like_export(stream: BinaryIO) -> bool:
    """Whether a stream begins as an SQLite file does; nothing of it is consumed."""
    peek = getattr(stream, "peek", None)
    return peek is not None and peek(len(MAGIC))[: len(MAGIC)] == MAGIC


def read_nsight_export(path: str) -> ProfilerTrace:
    """The trace that an export amounts to.

    Raises:
        NotARecording: it is some other SQLite file, or holds no memory events.
        InputError: it cannot be read.
        UnsafeInput: it claims more than any machine has.
    """
    if path == "-":
        raise InputError("standard input: an SQLite file cannot be read from a pipe; name the file")
    address = f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            database.execute("PRAGMA trusted_schema=OFF")
            database.text_factory = lambda data: data[:_LONGEST_NAME].decode("utf-8", "replace")
            return _Export(database, path).trace()
    except sqlite3.Error as error:
        raise InputError(f"{path}: cannot be read as SQLite ({error})") from None
    except (OverflowError, TypeError, ValueError):
        raise InputError(f"{path}: its tables hold values of other types") from None


class _Export:
    """One opened file."""

    def __init__(self, database: sqlite3.Connection, path: str) -> None:
        self._database, self._path = database, path
        rows = database.execute("SELECT name FROM sqlite_master WHERE type='table'")
        self._tables = {str(name) for (name,) in rows}
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[str, str], int] = {}
        self._spans: list[tuple[int, ...]] = []

    def trace(self) -> ProfilerTrace:
        """Kernels, calls of the runtime, NVTX ranges and memory events."""
        if "CUDA_GPU_MEMORY_USAGE_EVENTS" not in self._tables:
            raise NotARecording(
                f"{self._path}: an SQLite file without memory events; nsys profile"
                " --cuda-memory-usage=true records them"
            )
        texts = dict(self._rows("StringIds", ("id", "value")))
        memory = self._memory()
        self._add_device_work(texts)
        self._add_calls(texts)
        self._add_ranges(texts)
        spans = np.array(self._spans, np.int64).reshape(-1, 7)
        starts = np.concatenate((spans[:, 3], memory[:, 0]))
        origin = int(starts.min(initial=_LATEST_NS))
        if len(starts) and (starts.max() > _LATEST_NS or origin < 0):
            raise UnsafeInput(f"{self._path}: names times that no recording has")
        devices = np.unique(memory[:, 1]).tolist()
        if len(devices) > _MOST_DEVICES:
            raise UnsafeInput(f"{self._path}: names {len(devices):,} devices")
        return ProfilerTrace(
            source=self._path,
            facts={},
            names=list(self._names),
            shapes=[],
            threads=list(self._threads),
            spans=_spans_of(spans, origin),
            memory=_memory_of(memory, devices, origin),
            memory_devices=[MemoryDevice(_CUDA, device) for device in devices],
            began_us=origin // 1000,
            window_ns=None,
            resolution_ns=1,
            missing=(_DRIVER_LEVEL,),
        )

    def _rows(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yields the rows of a table that is there, those columns that it lacks as None."""
        if table not in self._tables:
            return
        present = {row[1] for row in self._database.execute(f'PRAGMA table_info("{table}")')}
        shown = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns)
        for count, row in enumerate(self._database.execute(f'SELECT {shown} FROM "{table}"')):
            if count > _MOST_ROWS:
                raise UnsafeInput(f"{self._path}: {table} has more than {_MOST_ROWS:,} rows")
            yield row

    def _memory(self) -> NDArray[np.int64]:
        """Time, device, signed size and address of each event on a device, in order of time."""
        columns = ("start", "deviceId", "bytes", "address", "memKind", "memoryOperationType")
        events = []
        for start, device, size, address, kind, operation in self._rows(
            "CUDA_GPU_MEMORY_USAGE_EVENTS", columns
        ):
            if kind is not None and kind not in _DEVICE_MEMORY:
                continue
            if not 0 <= size <= _LARGEST_BYTES:
                raise UnsafeInput(f"{self._path}: claims {size:,} bytes in one piece")
            events.append((start, device or 0, -size if operation == _FREE else size, address or 0))
        if not events:
            raise NotARecording(f"{self._path}: holds no allocation on a GPU")
        table = np.array(events, np.int64).reshape(-1, 4)
        return table[np.argsort(table[:, 0], kind="stable")]

    def _add(self, kind: Kind, name: str, place: tuple[str, str], *numbers: int) -> None:
        thread = self._threads.setdefault(place, len(self._threads))
        self._spans.append((kind, self._names.setdefault(name, len(self._names)), thread, *numbers))

    def _add_device_work(self, texts: dict[Any, Any]) -> None:
        for table, kind, name_column in _KERNELS:
            columns = ("start", "end", "deviceId", "streamId", "correlationId", name_column)
            for start, end, device, stream, correlation, name in self._rows(table, columns):
                if kind == Kind.COPY:
                    text = _COPIES.get(name, "Memcpy")
                else:
                    text = str(texts.get(name, "kernel")) if kind == Kind.KERNEL else "Memset"
                place = (f"GPU {device or 0}", str(stream))
                numbers = (start, max(start, end or start), device or 0, correlation or NONE)
                self._add(kind, text, place, *numbers)

    def _add_calls(self, texts: dict[Any, Any]) -> None:
        columns = ("start", "end", "globalTid", "nameId", "correlationId")
        for start, end, thread, name, number in self._rows("CUPTI_ACTIVITY_KIND_RUNTIME", columns):
            text = str(texts.get(name, "call")).partition("_v")[0]
            place = ("CPU", str(thread))
            self._add(
                Kind.RUNTIME, text, place, start, max(start, end or start), NONE, number or NONE
            )

    def _add_ranges(self, texts: dict[Any, Any]) -> None:
        """NVTX ranges; those that emit_nvtx wrote are operators: ``aten::mm, seq = 12, …``."""
        columns = ("start", "end", "globalTid", "text", "textId")
        for start, end, thread, text, number in self._rows("NVTX_EVENTS", columns):
            name = text if text is not None else texts.get(number)
            if end is None or start is None or not isinstance(name, str):
                continue
            name = name.partition(", ")[0]
            kind = Kind.OPERATOR if "::" in name else Kind.REGION
            self._add(kind, name, ("CPU", str(thread)), start, max(start, end), NONE, NONE)


def _spans_of(table: NDArray[np.int64], origin_ns: int) -> Spans:
    order = np.lexsort((-table[:, 4], table[:, 3]))
    kind, name, thread, start, end, device, correlation = table[order].T
    none = np.full(len(table), NONE, np.int64)
    return Spans(
        kind=kind.astype(np.uint8),
        name=name,
        start_ns=start - origin_ns,
        end_ns=end - origin_ns,
        thread=thread,
        device=device,
        correlation=correlation,
        external=none,
        sequence=none,
        backward=np.zeros(len(table), np.bool_),
        shapes=none,
    )


def _memory_of(table: NDArray[np.int64], devices: Sequence[int], origin_ns: int) -> MemoryEvents:
    count = len(table)
    none = np.full(count, NONE, np.int64)
    return MemoryEvents(
        time_ns=table[:, 0] - origin_ns,
        thread=none,
        device=np.searchsorted(np.array(devices, np.int64), table[:, 1]),
        size=table[:, 2],
        address=table[:, 3].astype(np.uint64),
        allocated=none,
        reserved=none,
        failed=np.zeros(count, np.bool_),
    )
