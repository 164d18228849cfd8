"""What a ``.vram`` file holds beside the snapshot: facts, tensors' names, ledgers, samples, owners.

Each part is optional and may be damaged or made by somebody else: it is read within bounds, values
of a wrong type are passed over, and what cannot be read is said in one sentence. None of it can
keep the snapshot from being read.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vramlens.allowance import EXPANDS_TIMES, count_expanded
from vramlens.read.json_bounds import refuse_costly
from vramlens.read.parts.measured import ledgers_of, samples_of
from vramlens.read.parts.recording_facts import meta_of
from vramlens.read.parts.storages import names_of, owners_of
from vramlens.trace import Ledgers, Meta, Owners, Samples, TensorNames

_LARGEST_BYTES = {
    "meta.json": 1 << 20,
    "names.json": 32 << 20,
    "ledger.json": 1 << 20,
    "samples.json": 64 << 20,
    "owners.json": 64 << 20,
}
_LARGEST_STATE = 256 << 20
_ALWAYS_ALLOWED_BYTES = 1 << 20
_LOST = {
    "meta.json": "the metadata of the recording",
    "names.json": "the tensors' names",
    "ledger.json": "the use of the rest of the GPU's memory",
    "samples.json": "the samples of the whole run",
    "owners.json": "what kept the memory",
}
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Members:
    """The parts of a ``.vram`` file beside its snapshot.

    Attributes:
        meta: empty where the file has none that can be read.
        names, ledgers, samples, owners: None where the file has none that can be read.
        totals: each device's memory, where the file says it.
        start_state: the pickle of the segments when recording began, unread; empty where there is
            none within bounds.
        present: the names of all known parts that the file has.
        missing: what could not be read, one sentence each.
    """

    meta: Meta = field(default_factory=Meta)
    names: TensorNames | None = None
    ledgers: Ledgers | None = None
    samples: Samples | None = None
    owners: Owners | None = None
    totals: Mapping[int, int] = field(default_factory=dict)
    start_state: bytes = field(default=b"", repr=False)
    present: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


NO_MEMBERS = Members()
"""Of a bare snapshot."""


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
        except Exception as error:
            # zip, deflate and JSON raise a dozen kinds; an optional part must not matter
            reason = str(error).split("\n", 1)[0][:100] or type(error).__name__
            missing.append(f"{_LOST[name]}: {name} cannot be read ({reason})")
            return None

    meta, totals = read("meta.json", meta_of) or (Meta(), {})
    return Members(
        meta=meta,
        names=read("names.json", names_of),
        ledgers=read("ledger.json", ledgers_of),
        samples=read("samples.json", samples_of),
        owners=read("owners.json", owners_of),
        totals=totals,
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
        raise ValueError("it is compressed with an unsupported method")
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
        raise ValueError("it is not a JSON object")
    return value
