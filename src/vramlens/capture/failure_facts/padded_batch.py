"""How much of a batch is padding when a request fails, read from the batch itself.

A batch of token numbers, or of the mask of them, is a table of integers. Where its last columns hold one
and the same value in all rows, they are padding; where the first do, it is padded on the left.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from vramlens.capture.failure_facts.batch_tables import BatchTable, rows_of
from vramlens.ground.program_errors import own_errors

_LEAST_PADDING = 0.1
"""Of the columns: the first one may be the token that begins every text."""
_FEWEST_NUMBERS = 3
"""Different ones in a table of token numbers; a mask has two, and its rows are two runs."""


def padded_batch(tables: Sequence[BatchTable]) -> dict[str, int] | None:
    """The batch of which there are most tables (numbers, mask, labels), of several that with most
    padding: ``rows``, ``columns`` and how many of them are used, ``used_columns``; None where nothing
    is padded. Never raises.
    """
    with own_errors():
        by_sizes: defaultdict[tuple[int, int], list[BatchTable]] = defaultdict(list)
        for table in tables:
            by_sizes[table.rows, table.columns].append(table)

        def weight(batch: dict[str, int]) -> tuple[int, int]:
            rows, columns = batch["rows"], batch["columns"]
            return len(by_sizes[rows, columns]), rows * (columns - batch["used_columns"])

        return max(_padded(by_sizes), key=weight, default=None)
    return None


def _padded(
    by_sizes: Mapping[tuple[int, int], Sequence[BatchTable]],
) -> Iterator[dict[str, int]]:
    for (rows, columns), tables in by_sizes.items():
        used = _used_columns_of(tables)
        if _is_padded(columns, used):
            yield {"rows": rows, "columns": columns, "used_columns": used}


def _is_padded(columns: int, used: int) -> bool:
    return columns - used >= _LEAST_PADDING * columns


def _used_columns_of(tables: Sequence[BatchTable]) -> int:
    """How many columns some tables of the same sizes use: what any of them has numbers in. Masks say it where
    there is no other table.
    """
    columns = tables[0].columns
    of_numbers, padded = [], []
    for table in tables:
        used, rows = used_columns(table.numbers, columns, table.item_bytes), table.lines
        is_padded = _is_padded(columns, used)
        # Rows that are all alike are the positions.
        if _has_many_numbers(rows, table.item_bytes) and (is_padded or len(set(rows)) > 1):
            of_numbers.append(used)
        if is_padded:
            padded.append(used)
    return max(of_numbers or padded, default=columns)


def used_columns(table: bytes, columns: int, item_bytes: int) -> int:
    """How many columns of a table are no padding; all where it is no batch of tokens, nor a mask.

    Args:
        table: its numbers, row after row.
        item_bytes: of each number.
    """
    rows = rows_of(table, columns * item_bytes)
    sides = _sides_of_padding(rows, item_bytes)
    padding = max(_common_run(rows, item_bytes, at_end=at_end) for at_end in sides)
    if not 0 < padding < columns:
        return columns
    is_batch = _is_mask(rows, item_bytes) or _has_many_numbers(rows, item_bytes)
    return columns - padding if is_batch else columns


def lengths_of_rows(table: bytes, columns: int, item_bytes: int, most_used: float) -> list[int]:
    """How many columns of each row come before its padding, which most rows end with or begin with; [] where
    more of the table is used, and where it is no batch of tokens, nor a mask.

    Args:
        table, item_bytes: as of ``used_columns``.
        most_used: of all columns.
    """
    rows = rows_of(table, columns * item_bytes)
    sides = _sides_of_padding(rows, item_bytes)
    runs = (_runs_of_padding(rows, item_bytes, at_end=at_end) for at_end in sides)
    padding = max(runs, key=sum)
    used = columns * len(rows) - sum(padding)
    if used > most_used * columns * len(rows):
        return []
    is_batch = _is_mask(rows, item_bytes) or _has_many_numbers(rows, item_bytes)
    return [columns - run for run in padding] if is_batch else []


def _sides_of_padding(rows: list[bytes], item_bytes: int) -> Sequence[bool]:
    """Where padding may stand: True for the end. A mask of truth values may mark what is used, or what is padding: at
    its end both are padding, at its begin they are not.
    """
    is_ambiguous = item_bytes == 1 and _is_mask(rows, item_bytes)
    return (True,) if is_ambiguous else (False, True)


def _runs_of_padding(rows: list[bytes], item_bytes: int, *, at_end: bool) -> list[int]:
    """How often the number that most rows end with, or begin with, is repeated there in each row."""
    ends = [row[-item_bytes:] if at_end else row[:item_bytes] for row in rows]
    (padding, count), *_ = Counter(ends).most_common(1)
    if count <= len(rows) // 2:
        return [0] * len(rows)
    return [
        _run(row, item_bytes, at_end=at_end) if end == padding else 0
        for row, end in zip(rows, ends, strict=True)
    ]


def _common_run(rows: list[bytes], item_bytes: int, *, at_end: bool) -> int:
    """How many columns at the end, or at the begin, hold one number in all rows."""
    ends = {row[-item_bytes:] if at_end else row[:item_bytes] for row in rows}
    return min(_run(row, item_bytes, at_end=at_end) for row in rows) if len(ends) == 1 else 0


def _run(row: bytes, item_bytes: int, *, at_end: bool) -> int:
    """How often a row's last, or first, number is repeated there."""
    number = row[-item_bytes:] if at_end else row[:item_bytes]
    matches = row.endswith if at_end else row.startswith
    shortest, longest = 1, len(row) // item_bytes
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        if matches(number * middle):
            shortest = middle
        else:
            longest = middle - 1
    return shortest


def _is_mask(rows: list[bytes], item_bytes: int) -> bool:
    """Whether each row is a run of one number and then a run of another one, or one run."""
    columns = len(rows[0]) // item_bytes
    runs = (
        (_run(row, item_bytes, at_end=False), _run(row, item_bytes, at_end=True)) for row in rows
    )
    return all(first + last in (columns, 2 * columns) for first, last in runs)


def _has_many_numbers(rows: list[bytes], item_bytes: int) -> bool:
    """Whether a table has more different numbers than a mask."""
    numbers: set[bytes] = set()
    for row in rows:
        numbers.update(row[start : start + item_bytes] for start in range(0, len(row), item_bytes))
        if len(numbers) >= _FEWEST_NUMBERS:
            return True
    return False
