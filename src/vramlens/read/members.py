"""What a ``.vram`` file holds beside the snapshot: facts, tensors' names, ledgers, samples, owners.

Each part is optional and may be damaged or made by somebody else: it is read within bounds, values
of a wrong type are passed over, and what cannot be read is said in one sentence. None of it can
keep the snapshot from being read.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from vramlens.allowance import EXPANDS_TIMES, count_expanded
from vramlens.read.json_bounds import refuse_costly
from vramlens.read.process_groups import group_metas
from vramlens.read.values import (
    LARGEST_NUMBER,
    LONGEST_TEXT,
    MOST_DEVICES,
    MOST_RANKS,
    as_dict,
    as_fraction,
    as_list,
    as_number,
    as_size,
    as_text,
)
from vramlens.trace import (
    AT_THE_END,
    NO_OWNER,
    DeviceLedger,
    DeviceMeta,
    FailureMeta,
    KeptBy,
    LedgerPart,
    Ledgers,
    Meta,
    Owners,
    Samples,
    TensorKind,
    TensorNames,
)

_LARGEST_BYTES = {
    "meta.json": 1 << 20,
    "names.json": 32 << 20,
    "ledger.json": 1 << 20,
    "samples.json": 64 << 20,
    "owners.json": 64 << 20,
}
_LARGEST_STATE = 256 << 20
_ALWAYS_ALLOWED_BYTES = 1 << 20
_LATEST_US = 1 << 60
_LONGEST_MESSAGE = 1 << 16
_MOST_PARTS = 64
_MOST_STATS = 1000
_LOST = {
    "meta.json": "what the recording says about itself",
    "names.json": "the tensors' names",
    "ledger.json": "where the rest of the GPU's memory was",
    "samples.json": "the samples of the whole run",
    "owners.json": "what kept the memory",
}
_MOST_OWNERS = 2_000
_MOST_LINKS = 64
_CLASSES = frozenset(
    {
        "graph",
        "container",
        "cycle",
        "autograd_cycle",
        "hook",
        "exception",
        "cache",
        "closure",
        "thread",
        "stream",
    }
    | {"pool", "context", "pinned", "external", "other"}
)
_VERDICTS = ("proven", "likely", "possible", "not a problem")
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Members:
    """The parts of a ``.vram`` file beside its snapshot.

    Attributes:
        meta, names, ledgers, samples, owners: None where the file has none that can be read.
        totals: each device's memory, where the file says it.
        start_state: the pickle of the segments when recording began, unread; empty where there is
            none within bounds.
        present: the names of all known parts that the file has.
        missing: what could not be read, one sentence each.
    """

    meta: Meta | None = None
    names: TensorNames | None = None
    ledgers: Ledgers | None = None
    samples: Samples | None = None
    owners: Owners | None = None
    totals: Mapping[int, int] = field(default_factory=dict)
    start_state: bytes = field(default=b"", repr=False)
    present: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def read_members(archive: zipfile.ZipFile, size_bytes: int) -> Members:
    """The parts of an opened ``.vram`` file; never raises.

    Args:
        size_bytes: of the file, for what its parts may expand to.
    """
    listed = {
        name: archive.getinfo(name)
        for name in (*_LOST, "start.pickle")
        if name in archive.NameToInfo
    }
    missing: list[str] = []

    def read(name: str, make: Callable[[Any, list[str]], _Read]) -> _Read | None:
        if name not in listed:
            return None
        try:
            return make(_json(archive, listed[name], size_bytes), missing)
        except (
            Exception
        ) as error:  # zip, deflate and JSON raise a dozen kinds; an optional part must not matter
            reason = str(error).split("\n", 1)[0][:100] or type(error).__name__
            missing.append(f"{_LOST[name]}: {name} cannot be read ({reason})")
            return None

    meta = read("meta.json", _meta)
    return Members(
        meta=meta[0] if meta else None,
        names=read("names.json", _names),
        ledgers=read("ledger.json", _ledgers),
        samples=read("samples.json", _samples),
        owners=read("owners.json", _owners),
        totals=meta[1] if meta else {},
        start_state=_start_state(archive, listed, size_bytes),
        present=tuple(listed),
        missing=tuple(missing),
    )


def _start_state(
    archive: zipfile.ZipFile, listed: Mapping[str, zipfile.ZipInfo], size_bytes: int
) -> bytes:
    """The state when recording began; empty where it is missing, damaged or out of proportion:
    it only helps.
    """
    info = listed.get("start.pickle")
    if info is None or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return b""
    limit = min(_LARGEST_STATE, max(_ALWAYS_ALLOWED_BYTES, EXPANDS_TIMES * size_bytes))
    try:
        with archive.open(info) as member:
            data = member.read(limit + 1)
    except Exception:  # as for the other parts
        return b""
    count_expanded(len(data))
    return data if len(data) <= limit else b""


def _json(archive: zipfile.ZipFile, info: zipfile.ZipInfo, size_bytes: int) -> dict[str, Any]:
    """The JSON object of a part.

    Raises:
        ValueError: it is too large, or no JSON object. Others where the zip is damaged.
    """
    import json

    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("it is compressed in a way that vramlens does not use")
    limit = min(
        _LARGEST_BYTES[info.filename], max(_ALWAYS_ALLOWED_BYTES, EXPANDS_TIMES * size_bytes)
    )
    with archive.open(info) as member:
        data = member.read(limit + 1)
    count_expanded(len(data))
    if len(data) > limit:
        raise ValueError(f"it is larger than {limit:,} bytes")
    refuse_costly(data)
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _by_device(value: object) -> Iterable[tuple[int, Any]]:
    """The entries whose keys are device indices."""
    for key, entry in list(as_dict(value).items())[:MOST_DEVICES]:
        if key.isascii() and key.isdecimal() and len(key) < 6:
            yield int(key), entry


def _address(value: object) -> int | None:
    if isinstance(value, str) and value[:2] == "0x" and len(value) <= 18:
        try:
            value = int(value, 16)
        except ValueError:
            return None
    return as_number(value, 2**64 - 1) or None


# The parts


def _meta(value: dict[str, Any], _missing: list[str]) -> tuple[Meta, dict[int, int]]:
    """What the recording says about itself, and each device's memory."""
    devices = {device: _device(entry) for device, entry in _by_device(value.get("devices"))}
    totals = {
        device: entry.total_bytes
        for device, entry in devices.items()
        if entry.total_bytes is not None
    }
    totals |= {
        device: size
        for device, total in _by_device(value.get("total_bytes"))
        if (size := as_size(total))
    }
    failure = value.get("oom")
    meta = Meta(
        **{name: as_text(value.get(name)) for name in _TEXTS},  # type: ignore[arg-type]
        **{name: as_number(value.get(name)) for name in _NUMBERS},  # type: ignore[arg-type]
        **{name: as_number(value.get(name), MOST_RANKS) for name in _RANKS},  # type: ignore[arg-type]
        command=tuple(
            word
            for each in as_list(value.get("command"))[:1000]
            if (word := as_text(each)) is not None
        ),
        groups=group_metas(value.get("groups")),
        devices=devices,
        environment={
            key: text
            for key, each in as_dict(value.get("settings")).items()
            if (text := as_text(each))
        },
        wrapped={
            device: entry
            for device, entry in _by_device(value.get("wrapped"))
            if isinstance(entry, bool)
        },
        module_marks=value.get("module_marks") is True,
        failure=_failure(failure) if isinstance(failure, dict) else None,
        started_us=as_number(value.get("started_us"), _LATEST_US),
        written_us=as_number(value.get("written_us"), _LATEST_US),
        dump_seconds=as_fraction(value.get("dump_seconds")),
    )
    return meta, totals


_TEXTS = (
    "vramlens",
    "torch",
    "cuda",
    "driver",
    "python",
    "platform",
    "trigger",
    "ending",
    "host",
    "device_name",
)
_NUMBERS = ("pid", "max_events", "step")
_RANKS = ("rank", "local_rank", "world_size")


def _device(value: object) -> DeviceMeta:
    entry = as_dict(value)
    stats = list(as_dict(entry.get("stats")).items())[:_MOST_STATS]
    return DeviceMeta(
        name=as_text(entry.get("name")),
        uuid=as_text(entry.get("uuid")),
        total_bytes=as_size(entry.get("total_bytes")),
        memory_fraction=as_fraction(entry.get("memory_fraction")),
        limit_bytes=as_size(entry.get("limit_bytes")),
        stats={name: number for name, each in stats if (number := as_number(each)) is not None},
    )


def _failure(entry: dict[str, Any]) -> FailureMeta:
    return FailureMeta(
        device=as_number(entry.get("device"), MOST_DEVICES),
        requested_bytes=as_number(entry.get("requested_bytes")),
        device_free_bytes=as_number(entry.get("device_free_bytes")),
        message=as_text(entry.get("message"), _LONGEST_MESSAGE),
    )


def _names(value: dict[str, Any], _missing: list[str]) -> TensorNames:
    """The named storages; rows without an address, a size or a name are passed over."""
    rows: list[tuple[int, int, int, int, int, str]] = []
    kinds = {kind.name.lower(): kind.value for kind in TensorKind}
    for each in as_list(value.get("tensors")):
        entry = as_dict(each)
        device, address = (
            as_number(entry.get("device"), MOST_DEVICES),
            _address(entry.get("address")),
        )
        size, name = as_size(entry.get("bytes")), as_text(entry.get("name"))
        if device is None or address is None or size is None or not name:
            continue
        kind, time_us = entry.get("kind"), as_number(entry.get("time_us"), _LATEST_US)
        moment = AT_THE_END if time_us is None else time_us
        rows.append(
            (
                device,
                address,
                size,
                kinds.get(kind, 0) if isinstance(kind, str) else 0,
                moment,
                name,
            )
        )
    device_, address_, size_, kind_, time_, name_ = zip(*rows, strict=True) if rows else ((),) * 6
    return TensorNames(
        device=np.array(device_, np.int32),
        address=np.array(address_, np.uint64),
        size_bytes=np.array(size_, np.int64),
        kind=np.array(kind_, np.uint8),
        time_us=np.array(time_, np.int64),
        name=tuple(name_),
    )


def _ledgers(value: dict[str, Any], missing: list[str]) -> Ledgers:
    found: dict[str, dict[int, DeviceLedger]] = {}
    host: dict[str, dict[str, int]] = {}
    for moment in ("start", "peak", "end"):
        entry = as_dict(value.get(moment))
        found[moment] = {}
        for device, one in _by_device(entry.get("devices")):
            ledger = _ledger(as_dict(one))
            if ledger is None:
                missing.append(
                    f"device {device}: its measured ledger ({moment}) does not add up to the device's memory, and is "
                    "left out"
                )
            else:
                found[moment][device] = ledger
        figures = list(as_dict(entry.get("host")).items())[:_MOST_PARTS]
        host[moment] = {
            name[:LONGEST_TEXT]: size
            for name, each in figures
            if (size := as_number(each)) is not None
        }
    return Ledgers(start=found["start"], peak=found["peak"], end=found["end"], host=host)


def _ledger(entry: dict[str, Any]) -> DeviceLedger | None:
    """A device's ledger; None unless its parts sum to the whole."""
    total, rows = as_size(entry.get("total_bytes")), as_list(entry.get("rows"))
    parts = []
    for row in rows[:_MOST_PARTS]:
        part = as_dict(row)
        kind, size = as_text(part.get("kind"), 100), as_number(part.get("bytes"))
        if not kind or size is None:
            return None
        confidence = part.get("confidence")
        sure = confidence if confidence in ("exact", "inferred", "unknown") else "unknown"
        parts.append(LedgerPart(kind, size, sure, as_text(part.get("note")) or ""))
    if total is None or sum(part.bytes for part in parts) != total:
        return None
    return DeviceLedger(total, tuple(parts))


_REQUIRED = ("time_us", "device", "allocated_bytes")
_SAMPLED = (
    "time_us",
    "step",
    "device",
    "allocated_bytes",
    "reserved_bytes",
    "free_bytes",
    "host_rss_bytes",
)


def _samples(value: dict[str, Any], _missing: list[str]) -> Samples:
    """The samples, in order of time; rows without a time, a device or allocated bytes are passed
    over.
    """
    columns = [name if isinstance(name, str) else "" for name in as_list(value.get("columns"))]
    place = {name: columns.index(name) for name in _SAMPLED if name in columns}
    rows: list[list[int]] = []
    if all(name in place for name in _REQUIRED):
        required = [_SAMPLED.index(name) for name in _REQUIRED]
        limits = [_LATEST_US] + [LARGEST_NUMBER] * (len(_SAMPLED) - 1)
        for row in as_list(value.get("rows")):
            if not isinstance(row, list) or len(row) < len(columns):
                continue
            cells = [row[place[name]] if name in place else None for name in _SAMPLED]
            numbers = [
                cell if type(cell) is int and 0 <= cell <= largest else -1
                for cell, largest in zip(cells, limits, strict=True)
            ]
            if all(numbers[i] >= 0 for i in required):
                rows.append(numbers)
    table = np.array(rows, np.int64).reshape(-1, len(_SAMPLED))
    table = table[np.argsort(table[:, 0], kind="stable")]
    return Samples(
        as_fraction(value.get("interval_s")), *(table[:, i] for i in range(len(_SAMPLED)))
    )


_STORED = ("device", "address", "bytes", "owner")


def _owners(value: dict[str, Any], _missing: list[str]) -> Owners:
    """What kept memory when the program was searched; storages without an address or a size are
    passed over.
    """
    owners = tuple(_kept_by(as_dict(each)) for each in as_list(value.get("owners"))[:_MOST_OWNERS])
    stored = as_dict(value.get("storages"))
    columns = [name if isinstance(name, str) else "" for name in as_list(stored.get("columns"))]
    rows: list[tuple[int, int, int, int]] = []
    if all(name in columns for name in _STORED):
        places = [columns.index(name) for name in _STORED]
        for row in as_list(stored.get("rows")):
            if not isinstance(row, list) or len(row) < len(columns):
                continue
            device, address, size, owner = (row[place] for place in places)
            where, number, many = as_number(device, MOST_DEVICES), _address(address), as_size(size)
            if where is None or number is None or many is None:
                continue
            known = type(owner) is int and 0 <= owner < len(owners)
            rows.append((where, number, many, owner if known else NO_OWNER))
    device_, address_, size_, owner_ = zip(*rows, strict=True) if rows else ((),) * 4
    return Owners(
        time_us=as_number(value.get("time_us"), _LATEST_US),
        complete=value.get("complete") is True,
        skipped=tuple(
            text for each in as_list(value.get("skipped"))[:_MOST_PARTS] if (text := as_text(each))
        ),
        owners=owners,
        device=np.array(device_, np.int32),
        address=np.array(address_, np.uint64),
        size_bytes=np.array(size_, np.int64),
        owner=np.array(owner_, np.int64),
    )


def _kept_by(entry: dict[str, Any]) -> KeptBy:
    kind, verdict = entry.get("class"), entry.get("verdict")
    return KeptBy(
        name=as_text(entry.get("name")) or "",
        kind=as_text(entry.get("kind"), 100) or "",
        file=as_text(entry.get("file")) or "",
        line=as_number(entry.get("line"), 1 << 31) or 0,
        function=as_text(entry.get("function")) or "",
        chain=tuple(
            text
            for each in as_list(entry.get("chain"))[:_MOST_LINKS]
            if (text := as_text(each, 200))
        ),
        leak_class=kind if isinstance(kind, str) and kind in _CLASSES else None,
        verdict=verdict if verdict in _VERDICTS else None,
        fix=as_text(entry.get("fix")),
        fix_share=min(1.0, share)
        if (share := as_fraction(entry.get("fix_share"))) is not None
        else 1.0,
    )
