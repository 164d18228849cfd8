"""The nearest of some objects on the way from another one to its root: asked for all links of a long
chain, each link is passed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Ancestors:
    """The nearest objects around others, themselves included, for which a condition holds.

    Args:
        parents: the position of each object's parent (-1 for a root) and a label, by position.
        is_wanted: whether an object at a position is one of them; once for each.
    """

    def __init__(
        self, parents: Mapping[int, tuple[int, str]], is_wanted: Callable[[int], bool]
    ) -> None:
        self._parents, self._is_wanted = parents, is_wanted
        self._nearest: dict[int, int] = {}

    def nearest(self, position: int) -> int:
        """The nearest; -1 where there is none up to the root."""
        passed = []
        while position >= 0 and position not in self._nearest:
            if self._is_wanted(position):
                self._nearest[position] = position
                break
            passed.append(position)
            position = self._parents[position][0] if position in self._parents else -1
        nearest = self._nearest[position] if position >= 0 else -1
        self._nearest.update(dict.fromkeys(passed, nearest))
        return nearest
