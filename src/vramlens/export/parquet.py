"""Parquet: one row an allocation, in the columns of the CSV, written by DuckDB."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.errors import UsageError
from vramlens.export.allocation_table import Column, Numbers, table_of

_MEMORY_LIMIT = "1500MB"
_ROW_GROUP = 131_072
_BOOLEANS = ("alive_at_peak",)


def write_parquet(views: Sequence[Attribution], out: BinaryIO) -> None:
    """Writes the allocations of some devices; what the recording cannot tell is NULL.

    Raises:
        UsageError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise UsageError(
            "Parquet needs DuckDB: pip install 'vramlens[fleet]'; --to csv needs nothing"
        ) from None
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "allocations.parquet").replace("'", "''")
        connection = duckdb.connect(
            config={
                "memory_limit": _MEMORY_LIMIT,
                "autoinstall_known_extensions": False,
                "pandas_analyze_sample": 0,  # all are texts: older versions ask arrays as pandas'
            }
        )
        with connection:
            parts = [_registered(connection, view, place) for place, view in enumerate(views)]
            options = f"FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROW_GROUP}"
            connection.execute(f"COPY ({' UNION ALL '.join(parts)}) TO '{path}' ({options})")
        with open(os.path.join(folder, "allocations.parquet"), "rb") as written:
            shutil.copyfileobj(written, out)


def _registered(connection: Any, view: Attribution, place: int) -> str:
    """Makes a device's table known, and gives the question that selects it."""
    table = table_of(view)
    plain, select = {}, []
    for name, column in table.items():
        plain[name] = _values(column)
        if isinstance(column, Numbers):
            if column.known is not None:
                plain[f"{name}_known"] = column.known
                select.append(f"CASE WHEN {name}_known THEN {name} END AS {name}")
            else:
                select.append(name)
        else:
            kind = "BOOLEAN" if name in _BOOLEANS else "VARCHAR"
            select.append(f"CAST({name} AS {kind}) AS {name}")
    connection.register(f"rows_{place}", plain)
    return f"SELECT {', '.join(select)} FROM rows_{place}"


def _values(column: Column) -> Any:
    if isinstance(column, Numbers):
        return np.ascontiguousarray(column.values)
    return np.array([*column.texts, None], dtype=object)[column.code]
