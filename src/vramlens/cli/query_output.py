"""The rows of a query as lines, kept on the disk until all of them are there.

An answer may have more rows than the memory holds, and is written whole or not at all.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from vramlens.foreign_text import visible
from vramlens.schema import SCHEMA

_IN_MEMORY_BYTES = 8 << 20


class Spool:
    """Lines that are kept until they are written.

    Args:
        file: where; empty.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write_anew(self, lines: Iterable[str]) -> None:
        """Keeps these lines, in place of whatever was kept."""
        self._file.seek(0)
        self._file.truncate()
        self._file.writelines(lines)

    def parts(self) -> Iterator[str]:
        """What was kept, some lines at a time."""
        self._file.seek(0)
        while lines := self._file.readlines(_IN_MEMORY_BYTES // 8):
            yield "".join(lines)


@contextmanager
def spooled() -> Iterator[Spool]:
    """A spool, on the disk once it is large; it is gone at the end."""
    with tempfile.SpooledTemporaryFile(
        _IN_MEMORY_BYTES, "w+", encoding="utf-8", errors="backslashreplace", newline="\n"
    ) as file:
        yield Spool(file)


def as_tabbed_lines(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """A line of names, and one a row, with tabs between the cells; NULL is empty."""
    yield _tabbed(names)
    for row in rows:
        yield _tabbed(row)


def _tabbed(row: Sequence[Any]) -> str:
    return "\t".join("" if cell is None else visible(str(cell)) for cell in row) + "\n"


def as_json_lines(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """One JSON object with the columns' names and the rows, a row on each line."""
    yield f'{{\n  "schema": {_json(SCHEMA)},\n  "columns": {_json(names)},\n  "rows": ['
    before = "\n    "
    for row in rows:
        yield before + _json(row)
        before = ",\n    "
    yield "\n  ]\n}\n"


def _json(value: Any) -> str:
    # "##" the same text in JSON, and no command (##[...]) to whoever reads the log.
    return json.dumps(_plain(value), allow_nan=False).replace("##", "#\\u0023")


def _plain(value: Any) -> Any:
    """A value of DuckDB's as JSON has it: what it has no word for as text, what is no number as
    null.
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    return str(value)
