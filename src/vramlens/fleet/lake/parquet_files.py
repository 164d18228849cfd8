"""Parquet files of a lake: written whole, with the types that the tables state, by DuckDB."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vramlens.errors import UsageError
from vramlens.fleet.lake.lake_tables import NUMBERS, SCHEMA_VERSION, TEXTS, LakeTable
from vramlens.fleet.lake.store import LakeStore
from vramlens.trace import Action

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_ROW_GROUP = 131_072
# Version 2 stores what ascends as differences: a half to a sixth of the bytes, in less time.
_FORM = (
    f"FORMAT parquet, PARQUET_VERSION v2, COMPRESSION zstd, ROW_GROUP_SIZE {_ROW_GROUP},"
    f" KV_METADATA {{vramlens_schema: '{SCHEMA_VERSION}'}}"
)
_MEMORY_LIMIT = "1500MB"
_ACTIONS = ", ".join(f"'{action.name.lower()}'" for action in Action)


class _Writer(threading.local):
    """The connection of each thread that writes: starting one takes 15 ms and more."""

    connection: DuckDBPyConnection | None = None


_writer = _Writer()


def connect(threads: int | None = None) -> DuckDBPyConnection:
    """A connection to an empty DuckDB that takes at most 1.5 GB and loads nothing from anywhere.

    Raises:
        UsageError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise UsageError("a lake needs DuckDB: pip install 'vramlens[fleet]'") from None
    settings: dict[str, Any] = {
        "memory_limit": _MEMORY_LIMIT,
        "autoinstall_known_extensions": False,
    }
    if threads is not None:
        settings["threads"] = threads
    return duckdb.connect(config=settings)


def writing_connection() -> DuckDBPyConnection:
    """The connection of this thread for writing."""
    if _writer.connection is None:
        _writer.connection = connect(threads=1)
    return _writer.connection


def write_columns(
    store: LakeStore, path: str, table: LakeTable, columns: Mapping[str, Any], attempt: int
) -> None:
    """Writes rows into a file of a table, whole or not at all; nothing where there are no rows."""
    if not columns:
        return
    connection = writing_connection()
    connection.register("columns", dict(columns))
    try:
        copy_whole(store, path, connection, _select(table, columns, attempt))
    finally:
        connection.unregister("columns")


def copy_whole(store: LakeStore, path: str, connection: DuckDBPyConnection, question: str) -> None:
    """Writes the answer to a question into a file, whole or not at all."""
    with store.whole(path) as scratch:
        connection.execute(f"COPY ({question}) TO {literal(scratch)} ({_FORM})")


def _select(table: LakeTable, columns: Mapping[str, Any], attempt: int) -> str:
    parts = []
    for column in table.columns:
        if column.name == "attempt":
            value = str(attempt)
        elif column.name not in columns:
            value = "NULL"
        else:
            value = _value(table, column.name, column.sql_type, columns[column.name])
        parts.append(f"CAST({value} AS {column.sql_type}) AS {identifier(column.name)}")
    return f"SELECT {', '.join(parts)} FROM columns"


def _value(table: LakeTable, name: str, sql_type: str, values: Any) -> str:
    """The expression that makes a column's cell of what was registered."""
    quoted = identifier(name)
    if table.name == "events":
        # Texts made from numbers: a million Python strings would take longer than all else.
        special = {
            "action": f"[{_ACTIONS}][{quoted} + 1]",
            "happened_at": f"make_timestamp(NULLIF({quoted}, 0))",
            "stack": f"NULLIF({quoted}, 0)",
        }
        return special.get(name, quoted)
    if sql_type in (TEXTS, NUMBERS):
        return f"from_json(CAST({quoted} AS VARCHAR), '[\"{sql_type.removesuffix('[]')}\"]')"
    is_text = np.asarray(values).dtype == object
    return f"CAST({quoted} AS VARCHAR)" if is_text else quoted


def literal(text: str) -> str:
    """A text as SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def file_list(store: LakeStore, paths: Sequence[str]) -> str:
    """Files as DuckDB's ``read_parquet`` takes them, each by its very name."""
    return "[" + ", ".join(literal(escaped(store.full(path))) for path in paths) + "]"


def escaped(path: str) -> str:
    """A path in which DuckDB sees no pattern: a folder may be called ``run[1]``."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)
