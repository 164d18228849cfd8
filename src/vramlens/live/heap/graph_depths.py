"""How deep into an autograd graph a search may look.

From PyTorch 2.13 on a node that Python has once looked at keeps its Python object for as long as it
lives, and such nodes are freed one within the other: a chain of some 35,000 overflows a stack of 8
MiB, and the program dies of it (measured with 2.13.0; 2.12 frees 100,000). So a search that looks at
all nodes of a long chain would be the program's end. It looks at the newest ones.
"""

from __future__ import annotations

import re
from typing import Any

_FIRST_THAT_KEEPS = (2, 13)
_DEEPEST = (10_000, 3000, 1000)
"""Nodes of a chain, by search: these and 20 further ones leave a third of a stack of 8 MiB to the program.
Backward graphs of one step are some hundred deep.
"""
_DEEPEST_OF_FURTHER = 500

_deep_searches = 0


class GraphDepths:
    """How far nodes are from the newest of their graph, by the longest way."""

    def __init__(self, torch: Any, *, is_brief: bool) -> None:
        """Prepares.

        Args:
            torch: PyTorch.
            is_brief: whether the search is one of many on the way to others.
        """
        version = tuple(map(int, re.findall(r"\d+", str(torch.__version__))[:2]))
        self._is_limited = version >= _FIRST_THAT_KEEPS
        self._is_brief = is_brief
        self._deepest: int | None = None
        self._depths: dict[int, int] = {}

    def depth_of(self, holder: Any) -> int:
        """Of a node, or of the one that saved a tensor; 0 of what no node led to."""
        return self._depths.get(id(holder), 0)

    def is_below(self, node: Any, depth: int) -> None:
        """Notes that something holds a node, or a tensor that it saved, at that depth."""
        if depth > self._depths.get(id(node), -1):
            self._depths[id(node)] = depth

    def has_room(self, depth: int) -> bool:
        """Whether what lies below may be looked at."""
        if not self._is_limited or depth < _DEEPEST_OF_FURTHER:
            return True
        if self._deepest is None:
            self._deepest = _DEEPEST_OF_FURTHER if self._is_brief else _deepest_of_next_search()
        return depth < self._deepest


def _deepest_of_next_search() -> int:
    """The depth for the next search that comes so deep."""
    global _deep_searches
    _deep_searches += 1
    return _DEEPEST[_deep_searches - 1] if _deep_searches <= len(_DEEPEST) else _DEEPEST_OF_FURTHER
