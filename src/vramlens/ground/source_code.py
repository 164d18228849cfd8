"""Source code: parsed, what of it is called and where it ends, and a line of it as an answer
quotes it.
"""

from __future__ import annotations

import ast
import io
import linecache
import tokenize

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)


def parsed(text: str) -> ast.Module | None:
    """A text, parsed; None where it cannot be."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def parsed_file(file: str) -> ast.Module | None:
    """The source of a file, parsed; None where it cannot be."""
    return parsed("".join(linecache.getlines(file)))


def last_name(expression: ast.AST) -> str:
    """``c`` of ``a.b.c``, ``x`` of ``x``; "" for all else."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def called(node: ast.AST) -> str:
    """The last name of a call's function: ``sum`` of ``x.sum(1)`` and of ``torch.sum(x)``; "" of
    what is no call.
    """
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def last_line_of(node: ast.stmt | ast.expr) -> int:
    """The line that a statement or an expression ends in."""
    return node.end_lineno or node.lineno


def without_comment(line: str) -> str:
    """The first line of a statement without the comment at its end; as it is where it cannot be
    taken apart, or is a comment as a whole.
    """
    try:
        for token in tokenize.generate_tokens(io.StringIO(line).readline):
            if token.type == tokenize.ERRORTOKEN or token.start[0] > 1:
                return line
            if token.type == tokenize.COMMENT:
                return line[: token.start[1]].rstrip() or line
    except (tokenize.TokenError, SyntaxError, ValueError):  # a recording may hold any text
        return line
    return line
