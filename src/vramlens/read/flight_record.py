"""Reading a flight record of PyTorch's NCCL backend (``_dump_nccl_trace``, or a dump on time-out),
pickle or JSON.

The form is that of torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.x. Files come from
anywhere: values of a wrong type are passed over, and nothing in them is executed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from vramlens.errors import InputError, NotARecording, UnsafeInput
from vramlens.read.json_bounds import refuse_costly
from vramlens.read.opened_source import Source, open_source, system_words, whole_of
from vramlens.read.pickle_values import read_values
from vramlens.read.values import MOST_RANKS, as_dict, as_list, as_number, text_of
from vramlens.trace.flight import Collective, FlightGroup, FlightRecord
from vramlens.trace.stacks import Frame

_LARGEST_BYTES = 256 << 20
_MOST_ENTRIES, _MOST_FRAMES, _MOST_TENSORS, _MOST_DIMENSIONS = 200_000, 100, 256, 16
_MOST_GROUPS = 256
_LONGEST_RANKS = 1 << 22
"""Characters of the text that lists a group's ranks."""
_LARGEST = (1 << 62) - 1
_MOST_LATER, _LATEST_NS = 100, 900 * 1_000_000_000
"""Calls, and nanoseconds, that a program may go on for when the watchdog has given up a call."""
_HEAD_BYTES = 1 << 16
_KEYS = ("pg_config", "nccl_comm_state", "collective_seq_id")
"""Of a record's start, one at least; a snapshot of memory has none of them."""
_ALL_KEYS = ("entries", "version")
"""What the smallest record has, and a snapshot has not both of: its own keys are those below."""
_OTHERS = ("segments", "device_traces", "traceEvents", "deviceProperties", "schemaVersion")
"""Of snapshots, and of the profiler's traces, which hold a pg_config of their own."""
_Part = TypeVar("_Part")


def is_flight_record(head: bytes) -> bool:
    """Whether a file that begins so may be a flight record."""
    if any(_has(head, key) for key in _OTHERS):
        return False
    return any(_has(head, key) for key in _KEYS) or all(_has(head, key) for key in _ALL_KEYS)


def looks_like_flight_record(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a flight record, by its first bytes; standard input and recordings in a zip
    never are.

    Raises:
        InputError: it cannot be read.
    """
    if os.fspath(path) == "-" or not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            # A recording: to open it is to read all that it says of itself.
            if file.read(2) == b"PK":
                return False
    except OSError as error:
        raise InputError(f"{os.fspath(path)}: {system_words(error)}") from None
    with open_source(path) as source:
        head = source.stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]
        return source.kind in ("pickle", "json") and is_flight_record(head)


def _has(head: bytes, key: str) -> bool:
    """Whether a pickle or a JSON text has a key, as a whole: functions in stacks may contain it
    in their names.
    """
    name = key.encode()
    in_pickles = (b"\x8c%c" % len(name) + name, b"X" + len(name).to_bytes(4, "little") + name)
    return any(form in head for form in (*in_pickles, b'"%b"' % name))


def read_flight_record(path: str | os.PathLike[str]) -> FlightRecord:
    """The flight record in a file, compressed or not.

    Raises:
        InputError: the file cannot be read.
        UnsafeInput: it asks for more than values.
        NotARecording: it is something else.
    """
    with open_source(path) as source:
        return flight_record(_whole(source), source.name)


def flight_record(data: bytes, name: str) -> FlightRecord:
    """The flight record in these bytes.

    Raises:
        UnsafeInput: they ask for more than values.
        NotARecording: they are something else.
    """
    parsed = as_dict(_parsed(data, name))
    entries = parsed.get("entries", [])
    if not isinstance(entries, list) or not _says_so(parsed):
        raise NotARecording(
            f"{name}: not an NCCL flight record: it has no pg_config and no entries"
        )

    shared = _Shared()
    library_version = text_of(parsed.get("comm_lib_version", parsed.get("nccl_version")))
    collectives = shared.all_of(_collective, entries[:_MOST_ENTRIES])
    last_completed = _last_completed(parsed.get("pg_status"))
    waiting = _before_giving_up(collectives)
    if waiting is not None:
        collectives, last_completed = waiting, _completed_of(waiting, last_completed)
    return FlightRecord(
        source=name,
        version=text_of(parsed.get("version")),
        library_version=library_version or None,
        groups=_groups(parsed.get("pg_config"), shared),
        last_completed=last_completed,
        collectives=collectives,
    )


def _before_giving_up(calls: tuple[Collective, ...]) -> tuple[Collective, ...] | None:
    """The calls as they were when the first of them timed out; None where none did.

    The watchdog gives up what waits: it ends as if it were complete, after more than its time, and
    the program may go on for a while.
    """
    ends_ns = [end_ns for call in calls if (end_ns := _given_up_ns(call)) is not None]
    if not ends_ns:
        return None
    end_ns = min(ends_ns)
    later = [created_ns for call in calls if (created_ns := call.created_ns or 0) > end_ns]
    if len(later) > _MOST_LATER or max(later, default=0) > end_ns + _LATEST_NS:
        return None  # it went on: a call that was slow, and complete
    return tuple(
        _waiting(call) if (call.completed_ns or 0) >= end_ns else call
        for call in calls
        if (call.created_ns or 0) <= end_ns
    )


def _given_up_ns(call: Collective) -> int | None:
    """When a call's time was over, if it took longer than that; None where it did not."""
    if call.created_ns is None or call.completed_ns is None or not call.timeout_ms:
        return None
    end_ns = call.created_ns + call.timeout_ms * 1_000_000
    return end_ns if call.completed_ns >= end_ns else None


def _waiting(call: Collective) -> Collective:
    """A call that was given up, as it was before."""
    state = "scheduled" if call.started_ns is None else "started"
    return replace(call, state=state, completed_ns=None)


def _completed_of(calls: Sequence[Collective], last_completed: Mapping[str, int]) -> dict[str, int]:
    """By group, the last number that was complete before any call was given up."""
    before_end: dict[str, int] = {}
    before_waiting: dict[str, int] = {}
    for call in calls:
        if call.is_p2p:
            continue
        before_end[call.group] = max(call.seq, before_end.get(call.group, 0))
        if call.completed_ns is None:
            number = call.seq - 1
            before_waiting[call.group] = min(number, before_waiting.get(call.group, number))
    bounds = {**before_end, **before_waiting}
    return {
        group: max(0, min(number, bounds.get(group, number)))
        for group, number in last_completed.items()
    }


def _last_completed(statuses: object) -> dict[str, int]:
    numbers = {}
    for key, status in as_dict(statuses).items():
        if isinstance(status, dict):
            numbers[text_of(key)] = _number(status.get("last_completed_collective")) or 0
    return numbers


def _parsed(data: bytes, name: str) -> Any:
    """The value in a pickle or a JSON text."""
    if data[:1] == b"\x80":
        return read_values(data, name)
    try:
        refuse_costly(data)
    except ValueError as error:
        raise UnsafeInput(f"{name}: {error}") from None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise NotARecording(
            f"{name}: not an NCCL flight record: neither a pickle nor JSON"
        ) from None


class _Shared:
    """Makes each part once: a pickle can name one large part a million times, in two bytes each."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, int], Any] = {}

    def once(self, make: Callable[[Any, _Shared], _Part], value: object) -> _Part:
        """What ``make`` makes of a part, which stays as long as this."""
        key = make, id(value)
        if key not in self._made:
            self._made[key] = make(value, self)
        return cast(_Part, self._made[key])

    def all_of(self, make: Callable[[Any, _Shared], _Part], values: list[Any]) -> tuple[_Part, ...]:
        """What ``make`` makes of each dict in a list."""
        return tuple(self.once(make, value) for value in values if isinstance(value, dict))


def _whole(source: Source) -> bytes:
    data = whole_of(source, _LARGEST_BYTES, "flight record")
    if not data:
        raise InputError(f"{source.name}: is empty")
    return data


def _says_so(value: dict[Any, Any]) -> bool:
    return (
        "pg_config" in value
        or "nccl_comm_state" in value
        or ("entries" in value and "version" in value)
    )


def _groups(value: object, shared: _Shared) -> dict[str, FlightGroup]:
    groups = {}
    for key, entry in list(as_dict(value).items())[:_MOST_GROUPS]:
        description = as_dict(entry)
        ranks = shared.once(_ranks, description.get("ranks"))
        name = text_of(description.get("name")) or text_of(key)
        groups[text_of(key)] = FlightGroup(name, text_of(description.get("desc")), ranks)
    return groups


def _ranks(value: object, _shared: _Shared) -> tuple[int, ...]:
    """A text such as "[0, 1]" in PyTorch's own, a list elsewhere."""
    if isinstance(value, str):
        value = [int(digits) for digits in re.findall(r"\d{1,9}", value[:_LONGEST_RANKS])]
    return tuple(
        rank for rank in as_list(value)[:MOST_RANKS] if as_number(rank, MOST_RANKS) is not None
    )


def _collective(entry: dict[Any, Any], shared: _Shared) -> Collective:
    group, description = _group_of(entry)
    p2p = entry.get("is_p2p") is True
    seq = _number(entry.get("p2p_seq_id" if p2p else "collective_seq_id"))
    name = text_of(entry.get("profiling_name"))
    return Collective(
        group=group,
        description=description,
        seq=seq if seq is not None else _number(entry.get("record_id")) or 0,
        name=name.partition(":")[2] or name,
        is_p2p=p2p,
        state=text_of(entry.get("state")) or "unknown",
        input_sizes=shared.once(_shapes, entry.get("input_sizes")),
        output_sizes=shared.once(_shapes, entry.get("output_sizes")),
        dtypes=shared.once(_texts, entry.get("input_dtypes")),
        created_ns=_number(entry.get("time_created_ns")),
        started_ns=_number(entry.get("time_discovered_started_ns")),
        completed_ns=_number(entry.get("time_discovered_completed_ns")),
        frames=shared.once(_frames, entry.get("frames")),
        timeout_ms=_number(entry.get("timeout_ms")),
    )


def _group_of(entry: dict[Any, Any]) -> tuple[str, str]:
    """A call's process group: its name, and its description where it has one."""
    group = as_list(entry.get("process_group"))
    if group:
        name, description, *_ = (*group[:2], "")
        return text_of(name), text_of(description)
    pg_id = entry.get("pg_id")
    return text_of(pg_id) or str(_number(pg_id) or 0), ""


def _shapes(value: object, shared: _Shared) -> tuple[tuple[int, ...], ...]:
    return tuple(shared.once(_shape, shape) for shape in as_list(value)[:_MOST_TENSORS])


def _shape(value: object, _shared: _Shared) -> tuple[int, ...]:
    sizes = map(_number, as_list(value)[:_MOST_DIMENSIONS])
    return tuple(size for size in sizes if size is not None)


def _texts(value: object, _shared: _Shared) -> tuple[str, ...]:
    return tuple(map(text_of, as_list(value)[:_MOST_TENSORS]))


def _frames(value: object, shared: _Shared) -> tuple[Frame, ...]:
    return shared.all_of(_frame, as_list(value)[:_MOST_FRAMES])


def _frame(entry: dict[Any, Any], _shared: _Shared) -> Frame:
    return Frame(
        text_of(entry.get("filename")), _number(entry.get("line")) or 0, text_of(entry.get("name"))
    )


def _number(value: object) -> int | None:
    return as_number(value, _LARGEST)
