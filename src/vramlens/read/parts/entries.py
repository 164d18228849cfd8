"""Values that several parts share: entries by device, addresses, texts, rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vramlens.read.values import (
    LONGEST_TEXT,
    MOST_DEVICES,
    as_dict,
    as_list,
    as_number,
    as_size,
    as_text,
    text_of,
)

Location = tuple[int, int, int]
"""Where a storage lies: the device's index, the address, the bytes."""
LATEST_US = 1 << 60


def by_device(value: object) -> Iterator[tuple[int, Any]]:
    """Yields the entries whose keys are device indices."""
    for key, entry in list(as_dict(value).items())[:MOST_DEVICES]:
        if key.isascii() and key.isdecimal() and len(key) < 6:
            yield int(key), entry


def counts_of(value: object, most: int) -> dict[str, int]:
    """The whole numbers among a dict's first entries, by name."""
    entries = list(as_dict(value).items())[:most]
    numbers = {text_of(name): as_number(number) for name, number in entries}
    return {name: number for name, number in numbers.items() if number is not None}


def as_address(value: object) -> int | None:
    """An address above 0, as a number or in hexadecimal; None for all else."""
    if isinstance(value, str) and value[:2] == "0x" and len(value) <= 18:
        try:
            value = int(value, 16)
        except ValueError:
            return None
    return as_number(value, 2**64 - 1) or None


def as_location(device: object, address: object, size: object) -> Location | None:
    """Where a storage lies; None unless all of it is known."""
    numbers = as_number(device, MOST_DEVICES), as_address(address), as_size(size)
    return None if None in numbers else cast(Location, numbers)


def column_of(rows: Sequence[Sequence[Any]], place: int, dtype: type[np.generic]) -> NDArray[Any]:
    """One column of a table that is given as rows."""
    return np.array([row[place] for row in rows], dtype)


def as_texts(value: object, most: int, longest: int = LONGEST_TEXT) -> Iterator[str]:
    """Yields the texts among the first entries of a list."""
    for entry in as_list(value)[:most]:
        text = as_text(entry, longest)
        if text is not None:
            yield text


def rows_of(
    table: dict[str, Any], names: tuple[str, ...], required: tuple[str, ...]
) -> Iterator[list[Any]]:
    """Yields the cells of ``{columns, rows}`` under these names; nothing without the required
    columns, None for another that is not there. Rows that are too short are passed over.
    """
    columns = [text_of(name) for name in as_list(table.get("columns"))]
    if not set(required) <= set(columns):
        return
    places = [columns.index(name) if name in columns else None for name in names]
    for row in as_list(table.get("rows")):
        if isinstance(row, list) and len(row) >= len(columns):
            yield [None if place is None else row[place] for place in places]
