"""Rows: what holds for every finding of one id: who finds it, and what it counts for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from vramlens.analyses.finding import Finding

LEAST_SHARE = 0.01
"""What is less than this of the peak, and of the request that failed, is hardly worth advice."""

SceneT = TypeVar("SceneT")


@dataclass(frozen=True, kw_only=True)
class FindingRow(Generic[SceneT]):
    """One kind of finding.

    Attributes:
        id: the slug that docs/findings.md lists.
        find: what yields it from a scene; None where another answer makes it.
        importance: its place among what a failure calls for, the first is 0; None where only its
            bytes count.
        important_from_share: of the peak; one with less has no importance.
        at_any_size: whether it matters however few its bytes are.
        takes_place_of: the id of the finding that says less about the same bytes; "" without one.
        unless: tells of another finding whether it makes this one superfluous.
    """

    id: str
    find: Callable[[SceneT], Iterator[Finding]] | None = None
    importance: int | None = None
    important_from_share: float = 0.0
    at_any_size: bool = False
    takes_place_of: str = ""
    unless: Callable[[SceneT, Finding], bool] | None = None
