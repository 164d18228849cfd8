"""How long the rows of a batch are when a request fails, where one or a few are far longer than the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vramlens.capture.failure_facts.batch_tables import BatchNumbers, BatchTable
from vramlens.capture.failure_facts.padded_batch import lengths_of_rows
from vramlens.ground.program_errors import own_errors

_MOST_USED = 0.5
"""Of the batch, padded to its longest row: with lengths at random a half is usual."""
_SHORTEST_LONGEST, _MOST_BATCHES = 64, 8


def row_lengths(batch: BatchNumbers) -> list[dict[str, int]]:
    """Batches of which most is padding to their longest rows: ``rows``, ``longest`` and ``total``, the sum of
    all lengths; those with most padding first. Never raises.
    """
    with own_errors():
        batches = {*_lengths_of_tables(batch.tables), *_lengths_of_vectors(batch.vectors)}

        def padding(lengths: tuple[int, int, int]) -> int:
            rows, longest, total = lengths
            return rows * longest - total

        uneven = sorted(filter(_is_uneven, batches), key=padding, reverse=True)
        return [
            {"rows": rows, "longest": longest, "total": total}
            for rows, longest, total in uneven[:_MOST_BATCHES]
        ]
    return []


def _is_uneven(lengths: tuple[int, int, int]) -> bool:
    rows, longest, total = lengths
    return longest >= _SHORTEST_LONGEST and 0 < total <= _MOST_USED * rows * longest


def _lengths_of_tables(tables: Iterable[BatchTable]) -> Iterator[tuple[int, int, int]]:
    """Yields the number of rows, the longest and the sum, as their padding says."""
    for table in tables:
        lengths = lengths_of_rows(table.numbers, table.columns, table.item_bytes, _MOST_USED)
        if lengths:
            yield table.rows, max(lengths), sum(lengths)


def _lengths_of_vectors(vectors: Iterable[BatchTable]) -> Iterator[tuple[int, int, int]]:
    """Yields the same of vectors that may be lengths."""
    for vector in vectors:
        lengths = vector.integers()
        if min(lengths) >= 0:
            yield vector.rows, max(lengths), sum(lengths)
