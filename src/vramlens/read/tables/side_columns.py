"""Fields of a snapshot that vramlens has no column for, as Python values, within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vramlens._layout import CellKind
from vramlens._native import Column, Snapshot
from vramlens.errors import UnsafeInput
from vramlens.trace import SideColumn, Strings

# A small file can name one large value a million times.
_MOST_SIDE_COLUMNS = 1000
_MOST_CHARACTERS = 16 * 1024**2
_USUAL_CHARACTERS = 1 << 10
_LONGEST_CELL = 1 << 20
_TABLES = ("events", "segments", "blocks", "frames", "annotations")
_KNOWN_KEYS = frozenset(
    {
        "segments",
        "device_traces",
        "host_segments",
        "host_traces",
        "external_annotations",
        "allocator_settings",
    }
)


def side_columns(
    snapshot: Snapshot, strings: Strings, top: Mapping[str, int]
) -> tuple[SideColumn, ...]:
    """The unknown fields of each table, then those of the top level.

    Raises:
        UnsafeInput: there are more of them than any snapshot has.
    """
    cells = _Cells(snapshot, strings)
    columns = []
    for table in _TABLES:
        keys = snapshot[f"{table}.extra_key"]
        order = np.argsort(keys, kind="stable")
        names, firsts = np.unique(keys[order], return_index=True)
        _refuse_many_fields(len(names), table)
        for key, places in zip(names.tolist(), np.split(order, firsts[1:]), strict=False):
            values = cells.values(snapshot[f"{table}.extra_value"][places])
            rows = snapshot[f"{table}.extra_row"][places]
            columns.append(SideColumn(table, strings[key], rows, values))
    unknown = {name: cell for name, cell in top.items() if name not in _KNOWN_KEYS}
    _refuse_many_fields(len(unknown), "the top level")
    for name, cell in unknown.items():
        values = cells.values(np.array([cell], np.uint64))
        columns.append(SideColumn("top", name, np.zeros(1, np.int64), values))
    return tuple(columns)


class _Cells:
    """Cells of the core's tables as Python values; nested ones share a bound on characters."""

    def __init__(self, snapshot: Snapshot, strings: Strings) -> None:
        self._snapshot, self._strings = snapshot, strings
        self._wide = snapshot["values.wide"]
        self._floats = snapshot["values.floats"].view(np.float64)
        self._room = _MOST_CHARACTERS

    def values(self, cells: Column) -> tuple[Any, ...]:
        """The value of each cell (native/value.h)."""
        distinct = {cell: self._value(cell) for cell in np.unique(cells).tolist()}
        return tuple(map(distinct.__getitem__, cells.tolist()))

    def _value(self, cell: int) -> Any:
        kind, payload = cell & 15, cell >> 4
        if kind == CellKind.INT:
            return payload - (payload >> 59 << 60)
        if kind == CellKind.WIDE_INT:
            return int(self._wide[payload])
        if kind == CellKind.WIDE_UINT:
            return int(self._wide[payload]) % 2**64
        if kind == CellKind.FLOAT:
            number = float(self._floats[payload])
            return number if np.isfinite(number) else None
        if kind in (CellKind.TEXT, CellKind.BYTES):
            return self._strings[payload]
        return self._nested(cell, is_container=kind == CellKind.OBJECT)

    def _nested(self, cell: int, *, is_container: bool) -> Any:
        nested = self._snapshot.json(cell, min(_USUAL_CHARACTERS, self._room))
        longest = min(_LONGEST_CELL, self._room)
        if nested is None and is_container:  # few are longer
            nested = self._snapshot.json(cell, longest)
        used = longest if nested is None and is_container else len(repr(nested))
        self._room -= min(used, self._room)
        return nested


def _refuse_many_fields(count: int, table: str) -> None:
    if count > _MOST_SIDE_COLUMNS:
        raise UnsafeInput(f"{table} has {count:,} unknown fields: no snapshot has")
