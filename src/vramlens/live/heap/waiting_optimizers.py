"""Optimizers, which hold the parameters of modules: their turn comes when all else was searched."""

from __future__ import annotations

from typing import Any

from vramlens.live.heap.roots import Root


class WaitingOptimizers:
    """The optimizers that a search has met.

    Attributes:
        types: of optimizers, by identity.
        waiting: those whose turn has not come, each with its root, or the position of what holds
            it.
    """

    def __init__(self) -> None:
        self.types: dict[int, type] = {}
        self.waiting: list[tuple[Any, int | Root]] = []
        self._taken: set[int] = set()

    def has_to_wait(self, value: Any) -> bool:
        """Whether something is an optimizer whose turn has not come."""
        return id(type(value)) in self.types and id(value) not in self._taken

    def add(self, optimizer: Any, holder: int | Root) -> None:
        """Has an optimizer wait."""
        self.waiting.append((optimizer, holder))

    def take(self) -> list[tuple[Any, int | Root]]:
        """Those that have waited; it is their turn."""
        taken, self.waiting = self.waiting, []
        self._taken.update(id(optimizer) for optimizer, _ in taken)
        return taken
