"""How deep into an autograd graph one may look.

From PyTorch 2.13 on a node that Python has once looked at keeps its Python object for as long as it
lives, and such nodes are freed one within the other: a chain of some 35,000 overflows a stack of 8
MiB, and the program dies of it (measured with 2.13.0; 2.12 frees 100,000). So whoever looks at all
nodes of a long chain would be the program's end. The newest ones are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from vramlens.ground.program_errors import let_through

_FIRST_THAT_KEEPS = (2, 13)
DEEPEST = 10_000
"""Nodes of a chain. Backward graphs of one step are some hundred deep."""
DEEPEST_OF_MANY = 500
"""Where looks come again and again: 20 of them are as much as one that is deep."""


class GraphDepths:
    """How far nodes are from the newest of their graph, by the longest way."""

    def __init__(self, torch: Any, deepest: Callable[[], int] = lambda: DEEPEST) -> None:
        """Prepares.

        Args:
            torch: PyTorch.
            deepest: gives how deep one may look; is asked once, where a graph is deep.
        """
        version = tuple(map(int, re.findall(r"\d+", str(torch.__version__))[:2]))
        self._is_limited = version >= _FIRST_THAT_KEEPS
        self._ask, self._deepest = deepest, 0
        self._depths: dict[int, int] = {}

    def depth_of(self, holder: Any) -> int:
        """Of a node, or of the one that saved a tensor; 0 of what no node led to."""
        return self._depths.get(id(holder), 0)

    def is_below(self, held: Any, depth: int) -> None:
        """Notes that a node holds another, or a tensor that it saved, at that depth. What is held must
        live as long as this.
        """
        if depth > self._depths.get(id(held), -1):
            self._depths[id(held)] = depth

    def has_room(self, depth: int) -> bool:
        """Whether what lies below may be looked at."""
        if not self._is_limited or depth < DEEPEST_OF_MANY:
            return True
        self._deepest = self._deepest or self._ask()
        return depth < self._deepest


def sequence_of(node: Any) -> int | None:
    """The number of a node in the order in which its thread made nodes; None for gradient
    accumulators.
    """
    try:
        number = int(node._sequence_nr())
    except Exception as error:
        let_through(error)
        return None
    return number if 0 <= number < 1 << 62 else None
