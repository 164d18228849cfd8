"""Values that several parts share: entries by device, addresses, texts, rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramlens.read.values import (
    LONGEST_TEXT,
    MOST_DEVICES,
    as_dict,
    as_list,
    as_number,
    as_text,
)

LATEST_US = 1 << 60


def by_device(value: object) -> Iterator[tuple[int, Any]]:
    """Yields the entries whose keys are device indices."""
    for key, entry in list(as_dict(value).items())[:MOST_DEVICES]:
        if key.isascii() and key.isdecimal() and len(key) < 6:
            yield int(key), entry


def as_address(value: object) -> int | None:
    """An address above 0, as a number or in hexadecimal; None for all else."""
    if isinstance(value, str) and value[:2] == "0x" and len(value) <= 18:
        try:
            value = int(value, 16)
        except ValueError:
            return None
    return as_number(value, 2**64 - 1) or None


def as_texts(value: object, most: int, longest: int = LONGEST_TEXT) -> Iterator[str]:
    """Yields the texts among the first entries of a list."""
    for entry in as_list(value)[:most]:
        text = as_text(entry, longest)
        if text is not None:
            yield text


def _column_names(table: dict[str, Any]) -> list[str]:
    return [name if isinstance(name, str) else "" for name in as_list(table.get("columns"))]


def rows_of(
    table: dict[str, Any], names: tuple[str, ...], required: tuple[str, ...]
) -> Iterator[list[Any]]:
    """Yields the cells of ``{columns, rows}`` under these names; nothing without the required
    columns, None for another that is not there. Rows that are too short are passed over.
    """
    columns = _column_names(table)
    if not set(required) <= set(columns):
        return
    places = [columns.index(name) if name in columns else None for name in names]
    for row in as_list(table.get("rows")):
        if isinstance(row, list) and len(row) >= len(columns):
            yield [None if place is None else row[place] for place in places]
