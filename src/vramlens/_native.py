"""The one door to the native core: loads it, and hands out its columns as NumPy arrays without
copying them.

Interface: native/vramlens.h; its structures: _layout. Calls release the interpreter lock, as ctypes does.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from vramlens._apart import call_apart
from vramlens._core import load_core
from vramlens._layout import LayoutInterface, ReadStatus, layout_of
from vramlens.errors import InputError, NotARecording, UnsafeInput

Column = NDArray[Any]

_ReadFunction = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


@dataclass(frozen=True, slots=True)
class _Core:
    """The loaded library, and the layout of its interface."""

    library: ctypes.CDLL
    layout: LayoutInterface
    column_types: Mapping[int, np.dtype[Any]]

    def structure(self, name: str, **fields: Any) -> Any:
        """A new structure of native/vramlens.h."""
        return self.layout.structures[name](**fields)


def _load() -> _Core:
    library = load_core()
    library.vl_layout.restype = ctypes.c_char_p
    description = library.vl_layout()
    if description is None:
        raise InputError("not enough memory to load the native core of vramlens")
    layout = layout_of(description.decode("ascii"))
    pointers = {name: ctypes.POINTER(struct) for name, struct in layout.structures.items()}
    for kind in ("snapshot", "lifetimes", "replay", "curve"):
        column = getattr(library, f"vl_{kind}_column")
        column.argtypes = [ctypes.c_void_p, ctypes.c_char_p, pointers["vl_column"]]
        free = getattr(library, f"vl_{kind}_free")
        free.argtypes, free.restype = [ctypes.c_void_p], None
    library.vl_snapshot_read.argtypes = [_ReadFunction, ctypes.c_void_p]
    library.vl_snapshot_read.restype = ctypes.c_void_p
    library.vl_snapshot_status.argtypes = [ctypes.c_void_p, pointers["vl_status"]]
    library.vl_snapshot_status.restype = None
    library.vl_snapshot_json.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_char_p,
        ctypes.c_int64,
    ]
    library.vl_snapshot_json.restype = ctypes.c_int64
    library.vl_lifetimes_make.argtypes = [pointers["vl_device"]]
    library.vl_lifetimes_make.restype = ctypes.c_void_p
    library.vl_replay_make.argtypes = [pointers["vl_replay_input"]]
    library.vl_replay_make.restype = ctypes.c_void_p
    for run in (library.vl_replay_run, library.vl_curve_make, library.vl_log_make):
        run.argtypes = [ctypes.c_void_p, pointers["vl_what_if"], pointers["vl_outcome"]]
    for make in (library.vl_curve_make, library.vl_log_make):
        make.restype = ctypes.c_void_p
    types = {number: np.dtype(name) for name, number in layout.numbers["column_type"].items()}
    return _Core(library, layout, types)


_loaded: _Core | None = None


def _core() -> _Core:
    global _loaded
    if _loaded is None:
        _loaded = _load()
    return _loaded


class _Columns:
    """A native object and its columns; every array keeps the object alive."""

    def __init__(self, handle: int | None, kind: str) -> None:
        if handle is None:
            raise InputError("not enough memory to read it")
        self._handle = handle
        self._core = _core()
        self._find = getattr(self._core.library, f"vl_{kind}_column")
        self._free = getattr(self._core.library, f"vl_{kind}_free")

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._free(handle)

    def __getitem__(self, name: str) -> Column:
        native = self._core.structure("vl_column")
        if not self._find(self._handle, name.encode(), ctypes.byref(native)):
            raise KeyError(name)
        dtype = self._core.column_types[native.type]
        if native.count == 0:
            return np.empty(0, dtype)
        memory = (ctypes.c_char * (native.count * dtype.itemsize)).from_address(native.data)
        cast(Any, memory).owner = self
        column = np.frombuffer(memory, dtype)
        column.flags.writeable = False
        return column

    def _summary(self, kind: str) -> dict[str, int]:
        """The column "summary", by the names that the core gives its places."""
        names = self._core.layout.numbers[f"{kind}_summary"]
        return dict(zip(names, self["summary"].tolist(), strict=True))


class Snapshot(_Columns):
    """The tables of one memory snapshot.

    Attributes:
        truncated_at: the byte at which the stream ended early, or None when it is whole.
    """

    def __init__(self, stream: BinaryIO, progress: Callable[[int], None] | None = None) -> None:
        """Reads a pickle from a stream; ``progress`` gets the number of bytes read so far.

        Raises:
            UnsafeInput: it would run code, or claims more than its size justifies.
            NotARecording: it is not a pickle, or an inconsistent one.
            InputError: the stream cannot be read.
        """
        failure: list[BaseException] = []
        done_bytes = 0
        is_stopped = False

        def fill(_context: int | None, buffer: int, capacity: int) -> int:
            nonlocal done_bytes
            if is_stopped:
                return -1
            try:
                into = memoryview((ctypes.c_char * capacity).from_address(buffer)).cast("B")
                got = cast(Any, stream).readinto(into) or 0
                done_bytes += got
                if progress is not None:
                    progress(done_bytes)
                return int(got)
            except BaseException as error:  # raised again below: a C frame lies between
                failure.append(error)
                return -1

        def stop() -> None:
            nonlocal is_stopped
            is_stopped = True

        library, callback = _core().library, _ReadFunction(fill)
        handle = call_apart(
            lambda: library.vl_snapshot_read(callback, None), stop, library.vl_snapshot_free
        )
        super().__init__(handle, "snapshot")
        if failure:
            raise failure[0]
        status = self._core.structure("vl_status")
        library.vl_snapshot_status(self._handle, ctypes.byref(status))
        self._refuse_unreadable(status)
        is_truncated = status.code == ReadStatus.TRUNCATED
        self.truncated_at = int(status.offset) if is_truncated else None

    @staticmethod
    def _refuse_unreadable(status: Any) -> None:
        message = status.message.decode()
        if status.code in (ReadStatus.UNSAFE, ReadStatus.LIMIT):
            raise UnsafeInput(f"refused at byte {status.offset}: {message}")
        if status.code == ReadStatus.MALFORMED:
            raise NotARecording(f"not readable at byte {status.offset}: {message}")
        if status.code in (ReadStatus.READ_FAILED, ReadStatus.NO_MEMORY):
            raise InputError(f"not readable at byte {status.offset}: {message}")

    def json(self, value: int, capacity: int = 1 << 20) -> Any:
        """The Python value that a value cell stands for; None where it is larger than
        ``capacity`` characters.
        """
        buffer = ctypes.create_string_buffer(2 * capacity)
        length = self._core.library.vl_snapshot_json(self._handle, value, buffer, capacity)
        return None if length < 0 else json.loads(buffer.raw[:length].decode(errors="replace"))


class NativeLifetimes(_Columns):
    """What became of every allocation and segment of one device: the columns of
    native/lifetimes.h.

    Attributes:
        summary: the column of that name, by name.
    """

    def __init__(
        self,
        columns: Mapping[str, Column],
        *,
        has_final_state: bool,
        max_split_size: int,
        roundup_divisions: Column | None,
    ) -> None:
        """Pairs the events in ``columns`` (the fields of vl_device by name, contiguous, of its
        types).
        """
        core = _core()
        device = core.structure(
            "vl_device",
            events=len(columns["action"]),
            segments=len(columns["segment_address"]),
            blocks=len(columns["block_address"]),
            has_final_state=has_final_state,
            max_split_size=max_split_size,
            roundup_divisions=None if roundup_divisions is None else roundup_divisions.ctypes.data,
        )
        _point_to(device, columns)
        super().__init__(core.library.vl_lifetimes_make(ctypes.byref(device)), "lifetimes")
        self.summary = self._summary("lifetimes")


class Replay(_Columns):
    """One device's recording replayed under its own settings, ready for others (native/replay.h).

    Attributes:
        summary: what came out, by name.
    """

    def __init__(
        self, columns: Mapping[str, Column], *, pools: int, settings: Mapping[str, Any]
    ) -> None:
        """Replays ``columns`` (the fields of vl_replay_input by name, contiguous, of its types)."""
        core = _core()
        recording = core.structure(
            "vl_replay_input",
            events=len(columns["action"]),
            rows=len(columns["row_born"]),
            base_segments=len(columns["base_address"]),
            pools=pools,
            settings=_replay_settings(settings),
        )
        _point_to(recording, columns)
        super().__init__(core.library.vl_replay_make(ctypes.byref(recording)), "replay")
        self.summary = self._summary("replay")

    def run(self, settings: Mapping[str, Any], **choices: int) -> dict[str, int]:
        """What the same requests lead to under other settings; several threads may ask at once.

        Args:
            choices: ``addresses``, ``completion`` and ``seed`` (native/vramlens.h: vl_what_if).
        """
        outcome, _ = self._asked("vl_replay_run", settings, choices)
        return outcome

    def curve(
        self, settings: Mapping[str, Any], **choices: int
    ) -> tuple[dict[str, int], NativeCurve]:
        """What ``run`` gives, and what that run has reserved over the events."""
        outcome, curve = self._asked("vl_curve_make", settings, choices)
        return outcome, NativeCurve(curve, "curve")

    def log(
        self, settings: Mapping[str, Any], **choices: int
    ) -> tuple[dict[str, int], NativeCurve]:
        """What ``curve`` gives, with columns of all that the allocator did (vl_log_make)."""
        outcome, curve = self._asked("vl_log_make", settings, choices)
        return outcome, NativeCurve(curve, "curve")

    def _asked(
        self, function: str, settings: Mapping[str, Any], choices: Mapping[str, int]
    ) -> tuple[dict[str, int], int]:
        """The outcome of a run, and what the native function returned for it."""
        what_if = self._core.structure("vl_what_if", settings=_replay_settings(settings), **choices)
        outcome = self._core.structure("vl_outcome")
        native_run = getattr(self._core.library, function)
        returned = native_run(self._handle, ctypes.byref(what_if), ctypes.byref(outcome))
        if not returned:
            raise InputError("not enough memory to replay it")
        return {name: int(getattr(outcome, name)) for name, *_ in outcome._fields_}, returned


class NativeCurve(_Columns):
    """What one run did: columns as native/vramlens.h says (vl_curve_make, vl_log_make)."""


def _point_to(structure: Any, columns: Mapping[str, Column]) -> None:
    """Sets a structure's fields to the columns of their names, which must outlive it."""
    for name, column in columns.items():
        assert column.flags.c_contiguous
        setattr(structure, name, column.ctypes.data)


def _replay_settings(settings: Mapping[str, Any]) -> Any:
    fields = dict(settings)
    divisions = fields.pop("roundup_power2_divisions")
    native = _core().structure("vl_replay_settings", **fields)
    native.roundup_power2_divisions[:] = divisions
    return native
