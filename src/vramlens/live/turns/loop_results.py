"""A loop's results, as against a leak: what the loop gathers and the program uses when it is over.

``for path in paths: samples.append(load(path))`` and then ``torch.stack(samples)`` looks like a
leak as long as the loop runs. That counts only where no optimizer steps: a training loop's list of
losses is used after it, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from vramlens.ground.verdict import Verdict
from vramlens.leak.leak import LeakOwner
from vramlens.live.leaks.leak_report import LeakReport, LiveLeak
from vramlens.live.source.expressions import last_name
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
    use = whole_use(owner)
    if not use:
        return leak
    reason = f"{use}: it may be the loop's result"
    return replace(leak, verdict=Verdict.POSSIBLE, reason=leak.reason_and(reason))


def whole_use(owner: LeakOwner) -> str:
    """``line 9 uses outputs after the loop``: where the program uses all that is kept, once it is
    gathered; empty where it does nowhere.
    """
    if owner.name.isidentifier():
        line = _use_after_loop(owner.file, owner.line, owner.name)
        return f"line {line} uses {owner.name} after the loop" if line else ""
    path = owner.name.partition("[")[0]
    body = tree_of(owner.file) if owner.file else None
    holder, _, name = path.rpartition(".")
    if body is None or not holder:
        return ""
    scope = _scope_of(body, owner.line)
    lines = sorted(_lines_that_use(body, holder, name))
    line = next((use for use in lines if not _is_around(scope, use)), 0)
    return f"line {line} uses all of {path}" if line else ""


def _lines_that_use(body: ast.Module, holder: str, name: str) -> Iterator[int]:
    """Yields the lines that use all of an attribute, or of a variable of the function that holds
    it.
    """
    for node in ast.walk(body):
        if _uses_all(node, name, ast.Attribute):
            yield _line_of(node)
        if isinstance(node, _FUNCTIONS) and node.name == holder:
            yield from (_line_of(part) for part in _within(node) if _uses_all(part, name))


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
    place = node.iter if isinstance(node, ast.comprehension) else node
    return int(getattr(place, "lineno", 0))


def _is_around(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", 0) or 0)


def _within(scope: ast.AST) -> Iterator[ast.AST]:
    """Yields what is in a function or module, and not in a function inside of it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, _FUNCTIONS):
            yield from _within(node)


def _uses_all(node: ast.AST, name: str, kind: type[ast.expr] = ast.Name) -> bool:
    """Whether a node hands a variable on, goes through it, or gives it back."""
    match node:
        case ast.Call(func=ast.Name(id=function)) if function in _LOOKS:
            return False
        case ast.Call(args=arguments):
            return _has_name(arguments, name, kind)
        case ast.For(iter=value) | ast.comprehension(iter=value) | ast.Return(value=value):
            return value is not None and _has_name([value], name, kind)
    return False


def _has_name(expressions: Sequence[ast.expr], name: str, kind: type[ast.expr]) -> bool:
    return any(isinstance(part, kind) and last_name(part) == name for part in expressions)
