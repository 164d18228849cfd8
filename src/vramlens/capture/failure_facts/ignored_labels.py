"""How many positions of a batch have no label when a request fails, read from the labels themselves.

PyTorch's losses leave out positions whose label is -100, and libraries fill labels with it: the prompt of a
conversation, padding, the words that a model is not to guess.
"""

from __future__ import annotations

from collections.abc import Iterable

from vramlens.capture.failure_facts.batch_tables import BatchTable
from vramlens.ground.program_errors import own_errors

_IGNORED = -100
"""The default of ``ignore_index``, torch/nn/functional.py."""


def ignored_labels(tables: Iterable[BatchTable]) -> dict[str, int] | None:
    """The labels with most positions that no loss looks at: ``rows``, ``columns`` and ``ignored``, the
    number of these; None without any. Never raises.
    """
    with own_errors():
        labels = (
            {"rows": table.rows, "columns": table.columns, "ignored": _ignored(table)}
            for table in tables
            if table.has_integers
        )
        batch = max(labels, key=lambda entry: entry["ignored"], default=None)
        return batch if batch is not None and batch["ignored"] else None
    return None


def _ignored(table: BatchTable) -> int:
    return table.integers().count(_IGNORED)
