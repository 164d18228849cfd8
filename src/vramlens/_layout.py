"""The structures and numbers of the native core's C interface, by the core's own description.

The structures are built from that description (native/layout.h), so a field that moved in
native/vramlens.h moves here, too. The enums stand here for the code that names them; they are
compared with the description when the core is loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from vramlens.errors import VramlensError


class ReadStatus(IntEnum):
    """How the reading of a snapshot ended."""

    WHOLE = 0
    TRUNCATED = 1
    UNSAFE = 2
    LIMIT = 3
    MALFORMED = 4
    READ_FAILED = 5
    NO_MEMORY = 6


class CellKind(IntEnum):
    """What a cell of pickled values holds (native/value.h)."""

    NONE = 0
    BOOL = 1
    INT = 2
    WIDE_INT = 3
    WIDE_UINT = 4
    FLOAT = 5
    TEXT = 6
    BYTES = 7
    OBJECT = 8


class TieOrder(IntEnum):
    """The order of the free blocks of one size (native/replay_settings.h)."""

    ADDRESS = 0
    OBJECT_COUNTER = 1
    SEGMENT_COUNTER = 2


class AddressOrder(IntEnum):
    """Where the driver puts new segments (native/replay_addresses.h)."""

    DRIVER = 0
    ASCENDING = 1
    DESCENDING = 2
    RANDOM = 3


class Completion(IntEnum):
    """When other streams are done with a block (native/replay.h)."""

    RECORDED = 0
    AT_ONCE = 1
    TWICE_AS_LATE = 2


_MIRRORED: Mapping[str, type[IntEnum]] = {
    "read_status": ReadStatus,
    "cell_kind": CellKind,
    "tie_order": TieOrder,
    "address_order": AddressOrder,
    "completion": Completion,
}
_C_TYPES: Mapping[str, Any] = {
    "char": ctypes.c_char,
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "float64": ctypes.c_double,
    "pointer": ctypes.c_void_p,
}


@dataclass(frozen=True, slots=True)
class LayoutInterface:
    """The C interface.

    Attributes:
        structures: each by its name in native/vramlens.h.
        numbers: the members of each enum, in order, by its name.
    """

    structures: Mapping[str, Any]
    numbers: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class _StructLines:
    """A structure as described: its size, and its fields as (type, name, offset)."""

    size: int
    fields: list[tuple[str, str, int]]


def layout_of(description: str) -> LayoutInterface:
    """The layout that a core describes.

    Raises:
        VramlensError: it is not the one that this package was written for.
    """
    struct_lines: dict[str, _StructLines] = {}
    numbers: dict[str, dict[str, int]] = {}
    members: dict[str, int] = {}
    fields: list[tuple[str, str, int]] = []
    for line in description.splitlines():
        kind, name, number_text = line.split()
        number = int(number_text)
        if kind == "struct":
            fields = []
            struct_lines[name] = _StructLines(number, fields)
        elif kind == "enum":
            members = numbers[name] = {}
        elif kind == "number":
            members[name] = number
        else:
            fields.append((kind, name, number))
    _refuse_other_numbers(numbers)
    structures: dict[str, Any] = {}
    for name, lines in struct_lines.items():
        structures[name] = _structure(name, lines, structures)
    return LayoutInterface(structures, numbers)


def _structure(name: str, lines: _StructLines, earlier: Mapping[str, Any]) -> Any:
    """A ctypes structure that refuses names that are not its fields."""
    types = {**_C_TYPES, **earlier}
    fields = []
    for type_name, field, _ in lines.fields:
        element, _, count = type_name.partition("*")
        field_type = types[element] * int(count) if count else types[element]
        fields.append((field, field_type))
    structure: Any = type(name, (ctypes.Structure,), {"__slots__": (), "_fields_": fields})
    offsets = [getattr(structure, field).offset for _, field, _ in lines.fields]
    described = [offset for _, _, offset in lines.fields]
    if ctypes.sizeof(structure) != lines.size or offsets != described:
        raise _other_version(name)
    return structure


def _refuse_other_numbers(numbers: Mapping[str, Mapping[str, int]]) -> None:
    for name, members in _MIRRORED.items():
        if {member.name.lower(): member.value for member in members} != numbers.get(name):
            raise _other_version(name)


def _other_version(name: str) -> VramlensError:
    return VramlensError(
        f"the native core of vramlens is of another version ({name} differs): install vramlens"
        " again"
    )
