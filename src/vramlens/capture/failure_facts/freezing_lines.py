"""Lines that freeze a model's parameters by their names, in the program's own files."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from vramlens.ground.program_errors import own_errors

_MOST_FILES, _MOST_LETTERS, _MOST_LINES = 8, 200_000, 4
_ATTRIBUTE, _METHOD, _NAMED = "requires_grad", "requires_grad_", "named_parameters"

Line = tuple[str, int]
"""A file and a line of it."""


@dataclass(frozen=True, slots=True)
class _Code:
    """What a file's statements do whatever its conditions say.

    Attributes:
        loops: those over named parameters, each with the function it is in; "" outside of functions.
        calls: the names of the functions that are called.
    """

    loops: list[tuple[str, ast.For]] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)


def freezing_lines(files: Iterable[str]) -> list[Line]:
    """The lines that freeze parameters, each with the test of their names that decides which: of loops that run
    whatever the program's settings, as far as its files tell. Never raises: the recording matters more.
    """
    lines: list[Line] = []
    for file in islice(files, _MOST_FILES):
        with own_errors():  # it may be no Python
            text = "".join(linecache.getlines(file))
            if len(text) <= _MOST_LETTERS and _NAMED in text and _ATTRIBUTE in text:
                lines += [(file, number) for number in _numbers(ast.parse(text))]
    return lines[:_MOST_LINES]


def _numbers(tree: ast.Module) -> Iterator[int]:
    """Yields the numbers of such lines of a file."""
    code = _Code()
    _read(tree, "", code)
    for function, loop in code.loops:
        inside = [node for node in ast.walk(loop) if isinstance(node, ast.stmt)]
        freezing = [node.lineno for node in inside if _is_freezing(node)]
        tests = [node.lineno for node in inside if _is_test(node, loop)]
        if freezing and tests and (function in code.calls or function in ("", "__init__")):
            yield from dict.fromkeys([freezing[0], tests[0]])


def _read(node: ast.AST, function: str, code: _Code) -> None:
    """Collects the loops and the calls below a node that no condition decides on."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and not _is_main(child):
            continue
        if isinstance(child, ast.For) and _NAMED in _called(child.iter):
            code.loops.append((function, child))
        code.calls.update(_called(child))
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            _read(child, child.name, code)
        else:
            _read(child, function, code)


def _is_main(node: ast.If) -> bool:
    """Whether it asks for the program itself."""
    return "__main__" in ast.unparse(node.test)


def _called(node: ast.AST) -> Iterator[str]:
    """Yields the name of what a call calls."""
    if isinstance(node, ast.Call):
        function = node.func
        yield getattr(function, "attr", getattr(function, "id", ""))


def _is_freezing(statement: ast.stmt) -> bool:
    """Whether it takes a parameter's gradient away."""
    if isinstance(statement, ast.Assign):
        target, is_off = statement.targets[0], _is_false(statement.value)
        return isinstance(target, ast.Attribute) and target.attr == _ATTRIBUTE and is_off
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call) and _METHOD in _called(call) and any(map(_is_false, call.args))
    )


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _is_test(statement: ast.stmt, loop: ast.For) -> bool:
    """Whether it decides by the name that a loop gives to each parameter."""
    if not isinstance(statement, ast.If) or not isinstance(loop.target, ast.Tuple):
        return False
    names = {part.id for part in ast.walk(statement.test) if isinstance(part, ast.Name)}
    return isinstance(loop.target.elts[0], ast.Name) and loop.target.elts[0].id in names
