"""The source of a file, parsed."""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache


@lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module | None:
    """The source of a file, parsed; None where it cannot be."""
    return parsed("".join(linecache.getlines(file)))


def parsed(text: str) -> ast.Module | None:
    """A text, parsed; None where it cannot be."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
