"""How deep searches may look into autograd graphs, all of a process together: a chain that lives on
has been looked at by each of them, at another part.
"""

from __future__ import annotations

from collections.abc import Callable

from vramlens.capture.process.graph_depths import DEEPEST, DEEPEST_OF_MANY

_DEEPEST = (DEEPEST, 3000, 1000)
"""By search: these and 20 further ones leave a third of a stack of 8 MiB to the program."""

_searches = 0


def deepest_of(*, is_brief: bool) -> Callable[[], int]:
    """What gives the depth for a search that comes to a deep graph.

    Args:
        is_brief: whether it is one of many on the way to others.
    """
    return (lambda: DEEPEST_OF_MANY) if is_brief else _deepest_of_next


def _deepest_of_next() -> int:
    global _searches
    _searches += 1
    return _DEEPEST[_searches - 1] if _searches <= len(_DEEPEST) else DEEPEST_OF_MANY
