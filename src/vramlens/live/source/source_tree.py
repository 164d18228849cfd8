"""The source of a file, parsed."""

from __future__ import annotations

import ast
from functools import lru_cache

from vramlens.ground.source_code import FUNCTIONS, LOOPS, parsed_file


@lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module | None:
    """The source of a file, parsed once; None where it cannot be."""
    return parsed_file(file)


def is_in_loop(file: str, line: int) -> bool:
    """Whether a line is in a loop of its own function."""
    return loop_around(file, line) is not None


def loop_around(file: str, line: int) -> ast.For | ast.AsyncFor | ast.While | None:
    """The innermost loop of its own function that a line is in; None where it is in none."""
    tree = tree_of(file)
    around = [] if tree is None else [node for node in ast.walk(tree) if _holds(node, line)]
    functions = [node for node in around if isinstance(node, FUNCTIONS)]
    begin = max((node.lineno for node in functions), default=0)
    loops = [node for node in around if isinstance(node, LOOPS) and node.lineno > begin]
    return max(loops, key=lambda node: node.lineno, default=None)


def _holds(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.stmt) and node.lineno < line <= (node.end_lineno or 0)
