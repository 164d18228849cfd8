"""The one door to the native core: loads it, and hands out its columns as NumPy arrays without
copying them.

Interface: native/vramlens.h. Calls release the interpreter lock, as ctypes does.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from vramlens._apart import call_apart
from vramlens._core import load_core
from vramlens.errors import InputError, NotARecording, UnsafeInput

Column = NDArray[Any]

_TYPES = (np.uint8, np.int32, np.uint32, np.int64, np.uint64)
_WHOLE, _TRUNCATED, _UNSAFE, _LIMIT, _MALFORMED, _READ_FAILED, _NO_MEMORY = range(7)


class _Column(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("count", ctypes.c_int64), ("type", ctypes.c_int32)]


class _Status(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("message", ctypes.c_char * 160),
    ]


class _Device(ctypes.Structure):
    _fields_ = [
        ("events", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("action", "address", "size", "stream", "stack")),
        ("segments", ctypes.c_int64),
        *(
            (f"segment_{name}", ctypes.c_void_p)
            for name in ("address", "size", "stream", "expandable")
        ),
        ("blocks", ctypes.c_int64),
        *(
            (f"block_{name}", ctypes.c_void_p)
            for name in ("address", "size", "requested", "stream", "stack", "pending")
        ),
        ("has_final_state", ctypes.c_int32),
        ("max_split_size", ctypes.c_uint64),
        ("roundup_divisions", ctypes.c_void_p),
    ]


class _ReplaySettings(ctypes.Structure):
    _fields_ = [
        ("expandable_segments", ctypes.c_int32),
        ("tie_order", ctypes.c_int32),
        ("scope_suppresses_release", ctypes.c_int32),
        ("max_split_size", ctypes.c_uint64),
        ("max_non_split_rounding_size", ctypes.c_uint64),
        ("large_segment_size", ctypes.c_uint64),
        ("roundup_power2_divisions", ctypes.c_uint64 * 16),
        ("garbage_collection_threshold", ctypes.c_double),
        ("allowed_maximum", ctypes.c_uint64),
        ("capacity", ctypes.c_uint64),
        ("reject_above", ctypes.c_uint64),
        ("reserve", ctypes.c_uint64),
    ]


class _ReplayInput(ctypes.Structure):
    _fields_ = [
        ("events", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "action",
                "address",
                "size",
                "stream",
                "emptied",
                "allocation",
                "released_pool",
            )
        ),
        ("rows", ctypes.c_int64),
        *(
            (f"row_{name}", ctypes.c_void_p)
            for name in (
                "born",
                "address",
                "requested",
                "taken",
                "stream",
                "pool",
                "scratch",
                "pending",
            )
        ),
        ("base_segments", ctypes.c_int64),
        *(
            (f"base_{name}", ctypes.c_void_p)
            for name in ("address", "size", "stream", "reservation", "pool", "mapped", "small")
        ),
        ("pools", ctypes.c_int64),
        ("settings", _ReplaySettings),
    ]


class _WhatIf(ctypes.Structure):
    _fields_ = [
        ("settings", _ReplaySettings),
        ("addresses", ctypes.c_int32),
        ("completion", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
    ]


class _Outcome(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "peak_requested",
            "peak_allocated",
            "peak_active",
            "peak_reserved",
            "retries",
            "device_allocs",
            "device_frees",
            "failures",
            "new_failures",
            "served_failures",
            "first_failure",
            "first_served",
            "died_at",
            "ties",
        )
    ] + [("failed_size", ctypes.c_uint64)]


_REPLAY_SUMMARY = (
    "segment_events",
    "segment_events_matched",
    "addresses",
    "addresses_matched",
    "sizes_matched",
    "first_difference",
    "simulated_action",
    "simulated_address",
    "simulated_size",
    "limit_low",
    "limit_high",
    "failed_requests",
    "first_failure",
    "peak_requested",
    "peak_allocated",
    "peak_active",
    "peak_reserved",
    "peak_inactive_split",
    "retries",
    "ooms",
    "device_allocs",
    "device_frees",
    "allocations",
    "refusals",
    "ops",
)

_ReadFunction = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def _load() -> ctypes.CDLL:
    library = load_core()
    for kind in ("snapshot", "lifetimes", "replay", "curve"):
        column = getattr(library, f"vl_{kind}_column")
        column.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(_Column)]
        free = getattr(library, f"vl_{kind}_free")
        free.argtypes, free.restype = [ctypes.c_void_p], None
    library.vl_snapshot_read.argtypes = [_ReadFunction, ctypes.c_void_p]
    library.vl_snapshot_read.restype = ctypes.c_void_p
    library.vl_snapshot_status.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Status)]
    library.vl_snapshot_status.restype = None
    library.vl_snapshot_json.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_char_p,
        ctypes.c_int64,
    ]
    library.vl_snapshot_json.restype = ctypes.c_int64
    library.vl_lifetimes_make.argtypes = [ctypes.POINTER(_Device)]
    library.vl_lifetimes_make.restype = ctypes.c_void_p
    library.vl_replay_make.argtypes = [ctypes.POINTER(_ReplayInput)]
    library.vl_replay_make.restype = ctypes.c_void_p
    for run in (library.vl_replay_run, library.vl_curve_make, library.vl_log_make):
        run.argtypes = [ctypes.c_void_p, ctypes.POINTER(_WhatIf), ctypes.POINTER(_Outcome)]
    for make in (library.vl_curve_make, library.vl_log_make):
        make.restype = ctypes.c_void_p
    return library


_library: ctypes.CDLL | None = None


def _core() -> ctypes.CDLL:
    global _library
    if _library is None:
        _library = _load()
    return _library


class _Columns:
    """A native object and its columns; every array keeps the object alive."""

    def __init__(self, handle: int | None, kind: str) -> None:
        if handle is None:
            raise InputError("not enough memory to read it")
        self._handle = handle
        self._find = getattr(_core(), f"vl_{kind}_column")
        self._free = getattr(_core(), f"vl_{kind}_free")

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._free(handle)

    def __getitem__(self, name: str) -> Column:
        found = _Column()
        if not self._find(self._handle, name.encode(), ctypes.byref(found)):
            raise KeyError(name)
        dtype = np.dtype(_TYPES[found.type])
        if found.count == 0:
            return np.empty(0, dtype)
        memory = (ctypes.c_char * (found.count * dtype.itemsize)).from_address(found.data)
        cast(Any, memory).owner = self
        column = np.frombuffer(memory, dtype)
        column.flags.writeable = False
        return column


class Snapshot(_Columns):
    """The tables of one memory snapshot.

    Attributes:
        truncated_at: the byte at which the stream ended early, or None when it is whole.
    """

    def __init__(self, stream: BinaryIO, progress: Callable[[int], None] | None = None) -> None:
        """Reads a pickle from a stream; ``progress`` gets the number of bytes read so far.

        Raises:
            UnsafeInput: it would run code, or claims more than its size justifies.
            NotARecording: it is no pickle, or an inconsistent one.
            InputError: the stream cannot be read.
        """
        failure: list[BaseException] = []
        done, is_stopped = 0, False

        def fill(_context: int | None, buffer: int, capacity: int) -> int:
            nonlocal done
            if is_stopped:
                return -1
            try:
                into = memoryview((ctypes.c_char * capacity).from_address(buffer)).cast("B")
                got = cast(Any, stream).readinto(into) or 0
                done += got
                if progress is not None:
                    progress(done)
                return int(got)
            except BaseException as error:  # raised again below: a C frame lies between
                failure.append(error)
                return -1

        def stop() -> None:
            nonlocal is_stopped
            is_stopped = True

        core, callback = _core(), _ReadFunction(fill)
        super().__init__(
            call_apart(lambda: core.vl_snapshot_read(callback, None), stop, core.vl_snapshot_free),
            "snapshot",
        )
        if failure:
            raise failure[0]
        status = _Status()
        _core().vl_snapshot_status(self._handle, ctypes.byref(status))
        message = status.message.decode()
        if status.code in (_UNSAFE, _LIMIT):
            raise UnsafeInput(f"refused at byte {status.offset}: {message}")
        if status.code in (_MALFORMED, _READ_FAILED, _NO_MEMORY):
            kind = NotARecording if status.code == _MALFORMED else InputError
            raise kind(f"not readable at byte {status.offset}: {message}")
        self.truncated_at = int(status.offset) if status.code == _TRUNCATED else None

    def json(self, value: int, capacity: int = 1 << 20) -> Any:
        """The Python value that a value cell stands for; None where it is larger than
        ``capacity`` characters.
        """
        buffer = ctypes.create_string_buffer(2 * capacity)
        length = _core().vl_snapshot_json(self._handle, value, buffer, capacity)
        return None if length < 0 else json.loads(buffer.raw[:length].decode(errors="replace"))


class Lifetimes(_Columns):
    """What became of every allocation and segment of one device: the columns of
    native/lifetimes.h.
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
        device = _Device(
            events=len(columns["action"]),
            segments=len(columns["segment_address"]),
            blocks=len(columns["block_address"]),
            has_final_state=has_final_state,
            max_split_size=max_split_size,
            roundup_divisions=None if roundup_divisions is None else roundup_divisions.ctypes.data,
        )
        for name, column in columns.items():
            assert column.flags.c_contiguous
            setattr(device, name, column.ctypes.data)
        super().__init__(_core().vl_lifetimes_make(ctypes.byref(device)), "lifetimes")


class Replay(_Columns):
    """One device's recording replayed under its own settings, ready for others (native/replay.h).

    Attributes:
        summary: what came out, by name.
    """

    def __init__(
        self, columns: Mapping[str, Column], *, pools: int, settings: Mapping[str, Any]
    ) -> None:
        """Replays ``columns`` (the fields of vl_replay_input by name, contiguous, of its types)."""
        given = _ReplayInput(
            events=len(columns["action"]),
            rows=len(columns["row_born"]),
            base_segments=len(columns["base_address"]),
            pools=pools,
            settings=_replay_settings(settings),
        )
        for name, column in columns.items():
            assert column.flags.c_contiguous
            setattr(given, name, column.ctypes.data)
        super().__init__(_core().vl_replay_make(ctypes.byref(given)), "replay")
        self.summary = dict(zip(_REPLAY_SUMMARY, self["summary"].tolist(), strict=True))

    def run(
        self, settings: Mapping[str, Any], *, addresses: int, completion: int, seed: int
    ) -> dict[str, int]:
        """What the same requests lead to under other settings; several threads may ask at once."""
        what_if = _WhatIf(
            settings=_replay_settings(settings),
            addresses=addresses,
            completion=completion,
            seed=seed,
        )
        outcome = _Outcome()
        if not _core().vl_replay_run(self._handle, ctypes.byref(what_if), ctypes.byref(outcome)):
            raise InputError("not enough memory to replay it")
        return _outcome(outcome)

    def curve(
        self, settings: Mapping[str, Any], *, addresses: int, completion: int, seed: int
    ) -> tuple[dict[str, int], Curve]:
        """What ``run`` gives, and what that run has reserved over the events."""
        return self._watched_run(
            _core().vl_curve_make, settings, addresses=addresses, completion=completion, seed=seed
        )

    def log(
        self, settings: Mapping[str, Any], *, addresses: int, completion: int, seed: int
    ) -> tuple[dict[str, int], Curve]:
        """What ``curve`` gives, with columns of all that the allocator did (vl_log_make)."""
        return self._watched_run(
            _core().vl_log_make, settings, addresses=addresses, completion=completion, seed=seed
        )

    def _watched_run(
        self, make: Any, settings: Mapping[str, Any], *, addresses: int, completion: int, seed: int
    ) -> tuple[dict[str, int], Curve]:
        what_if = _WhatIf(
            settings=_replay_settings(settings),
            addresses=addresses,
            completion=completion,
            seed=seed,
        )
        outcome = _Outcome()
        made = make(self._handle, ctypes.byref(what_if), ctypes.byref(outcome))
        if made is None:
            raise InputError("not enough memory to replay it")
        return _outcome(outcome), Curve(made, "curve")


class Curve(_Columns):
    """What one run did: columns as native/vramlens.h says (vl_curve_make, vl_log_make)."""


def _outcome(outcome: _Outcome) -> dict[str, int]:
    return {name: int(getattr(outcome, name)) for name, *_ in _Outcome._fields_}


def _replay_settings(settings: Mapping[str, Any]) -> _ReplaySettings:
    made = _ReplaySettings(
        **{name: value for name, value in settings.items() if name != "roundup_power2_divisions"}
    )
    made.roundup_power2_divisions[:] = settings["roundup_power2_divisions"]
    return made
