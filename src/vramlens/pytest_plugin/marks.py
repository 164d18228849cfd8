"""Marks: what a test's markers ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from vramlens.errors import UsageError
from vramlens.units import parse_size

LIMIT, LEAKS = "limit_gpu_memory", "no_gpu_leaks"
_MOST_RUNS = 100


@dataclass(slots=True)
class Marks:
    """The limits that a test's markers ask for, in bytes; None where it has no such marker."""

    limit: int | None = None
    limit_text: str = ""
    allowed: int | None = None
    warmup: int = 0

    def __bool__(self) -> bool:
        """True if there is anything to hold."""
        return self.limit is not None or self.allowed is not None


def marks_of(item: pytest.Item) -> Marks:
    """The limits that the test's markers ask for.

    Raises:
        pytest.UsageError: a marker says nothing that can be held.
    """
    marks = Marks()
    limit = item.get_closest_marker(LIMIT)
    if limit is not None:
        if len(limit.args) != 1 or set(limit.kwargs) - {"warmup"}:
            raise pytest.UsageError(f'{item.nodeid}: write @pytest.mark.{LIMIT}("2 GB")')
        marks.limit, marks.limit_text = _size(item, LIMIT, limit.args[0]), limit.args[0]
        marks.warmup = _runs(item, LIMIT, limit.kwargs.get("warmup", 0))
    leaks = item.get_closest_marker(LEAKS)
    if leaks is not None:
        if leaks.args or set(leaks.kwargs) - {"allow", "warmup"}:
            raise pytest.UsageError(
                f'{item.nodeid}: write @pytest.mark.{LEAKS}, or {LEAKS}(allow="1 MiB")'
            )
        marks.allowed = _size(item, LEAKS, leaks.kwargs.get("allow", 0))
        marks.warmup = max(marks.warmup, _runs(item, LEAKS, leaks.kwargs.get("warmup", 0)))
    return marks


def _size(item: pytest.Item, marker: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    try:
        return parse_size(value)
    except (UsageError, TypeError, OverflowError, ValueError):
        raise pytest.UsageError(
            f'{item.nodeid}: {marker}({value!r}) is not a size: write "2 GB" or "512 MiB"'
        ) from None


def _runs(item: pytest.Item, marker: str, value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_RUNS:
        return value
    raise pytest.UsageError(
        f"{item.nodeid}: {marker}(warmup={value!r}): use a number of runs from 0 to {_MOST_RUNS}"
    )
