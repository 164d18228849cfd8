"""A loop's results, as against a leak: what the loop gathers and the program uses when it is over.

``for path in paths: samples.append(load(path))`` and then ``torch.stack(samples)`` looks like a
leak as long as the loop runs. That counts only where a step is a turn of a loop or a stretch of
time: a training loop's list of losses is used after it, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from vramlens.ground.verdict import Verdict
from vramlens.live.leaks.leak_report import LeakReport, LiveLeak
from vramlens.live.source.source_tree import tree_of

_LOOKS = frozenset(("len", "print", "id", "type", "isinstance", "repr", "str", "bool", "getsizeof"))
"""Functions that look at something without using what is in it."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def without_results(report: LeakReport) -> LeakReport:
    """The report, with what a loop gathered for a use after it as possible leaks only."""
    return replace(report, leaks=tuple(map(_judged, report.leaks)))


def _judged(leak: LiveLeak) -> LiveLeak:
    owner = leak.owner
    if not leak.sure or owner is None or not owner.name.isidentifier():
        return leak
    line = _use_after_loop(owner.file, owner.line, owner.name)
    if not line:
        return leak
    reason = f"line {line} uses {owner.name} after the loop: it may be the loop's result"
    return replace(leak, verdict=Verdict.POSSIBLE, reason=leak.reason_and(reason))


def _use_after_loop(file: str, line: int, name: str) -> int:
    """The first line after the outermost loop around a line that uses all of a variable; 0 where
    there is none.
    """
    body = tree_of(file) if file else None
    if body is None:
        return 0
    nodes = list(_within(_scope_of(body, line)))
    last_line = _end_of_loop(nodes, line)
    if not last_line:
        return 0
    lines = (_line_of(node) for node in nodes if _uses_all(node, name))
    return next((use for use in lines if use > last_line), 0)


def _end_of_loop(nodes: Iterable[ast.AST], line: int) -> int:
    """The last line of the outermost loop around a line; 0 where there is none."""
    loops = (node for node in nodes if isinstance(node, _LOOPS) and _is_around(node, line))
    return max((loop.end_lineno or loop.lineno for loop in loops), default=0)


def _scope_of(body: ast.Module, line: int) -> ast.AST:
    """The innermost function around a line; the module where there is none."""
    functions = (node for node in ast.walk(body) if isinstance(node, _FUNCTIONS))
    around = [node for node in functions if _is_around(node, line)]
    return around[-1] if around else body


def _line_of(node: ast.AST) -> int:
    """The first line of a node; 0 of what has none."""
    return int(getattr(node, "lineno", 0))


def _is_around(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", 0) or 0)


def _within(scope: ast.AST) -> Iterator[ast.AST]:
    """Yields what is in a function or module, and not in a function inside of it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, _FUNCTIONS):
            yield from _within(node)


def _uses_all(node: ast.AST, name: str) -> bool:
    """Whether a node hands a variable on, goes through it, or gives it back."""
    match node:
        case ast.Call(func=ast.Name(id=function)) if function in _LOOKS:
            return False
        case ast.Call(args=arguments):
            return _has_name(arguments, name)
        case ast.For(iter=value) | ast.comprehension(iter=value) | ast.Return(value=value):
            return value is not None and _has_name([value], name)
    return False


def _has_name(expressions: Sequence[ast.expr], name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in expressions)
