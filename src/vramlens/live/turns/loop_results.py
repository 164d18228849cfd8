"""A loop's results, as against a leak: what the loop gathers and the program uses when it is over.

``for path in paths: samples.append(load(path))`` and then ``torch.stack(samples)`` looks like a
leak as long as the loop runs. Where an optimizer steps that counts only for what few steps left: a
training loop's list of losses is used after it, too.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from vramlens.ground.source_code import FUNCTIONS, LOOPS, last_line_of, last_name
from vramlens.ground.verdict import Verdict
from vramlens.leak.leak import LeakOwner
from vramlens.live.growth.pace import RARE
from vramlens.live.leaks.leak_report import LeakReport, LiveLeak
from vramlens.live.source.source_tree import tree_of
from vramlens.live.source.whole_reads import (
    combines_all,
    goes_through_values,
    is_around,
    line_of,
    uses_all,
)

_Loop = ast.For | ast.AsyncFor | ast.While
IsUse = Callable[[ast.AST, str, type[ast.expr]], bool]
"""Whether a node uses all of a variable, or an attribute, of a name."""
_MOST_PLACES = 12
"""Calls that lead to a line: a method of a common name has hundreds, of other objects."""


def without_results(report: LeakReport) -> LeakReport:
    """The report, with what a loop gathered for a use after it as possible leaks only."""
    return replace(report, leaks=tuple(map(_judged, report.leaks)))


def without_training_results(report: LeakReport) -> LeakReport:
    """The same of a training, no graphs: what a few of its steps gathered, as a snapshot of each
    cycle; and what each step gathered where one tensor is made of all. A list of losses that is
    printed after it, too, is none.
    """
    return replace(report, leaks=tuple(map(_judged_of_training, report.leaks)))


def _judged_of_training(leak: LiveLeak) -> LiveLeak:
    if leak.kind == "graph" or leak.first_step is None or leak.last_step is None:
        return leak
    is_rare = leak.steps * RARE <= leak.last_step - leak.first_step + 1
    return _judged(leak, uses_all if is_rare else combines_all)


def _judged(leak: LiveLeak, is_use: IsUse = uses_all) -> LiveLeak:
    owner = leak.owner
    if not leak.sure or owner is None or leak.in_vain or leak.kind == "exception":
        return leak  # what reads exceptions does not read their tracebacks
    use = result_use(owner, is_use)
    if not use:
        return leak
    reason = f"{use}: it may be the loop's result"
    return replace(leak, verdict=Verdict.POSSIBLE, reason=leak.reason_and(reason))


def result_use(owner: LeakOwner, is_use: IsUse = uses_all) -> str:
    """``line 9 uses all of outputs after the loop``: where the program uses all that is kept, once,
    when the loop that gathered it has ended; empty where it does nowhere.

    Args:
        is_use: whether a node uses all of a variable or attribute of a name.
    """
    body = tree_of(owner.file) if owner.file else None
    if _variable_of(owner) or body is None:
        return whole_use(owner, is_use)
    path, line = _first_use_elsewhere(body, owner, is_use)
    if not line or not _is_once_after(body, line, owner.line):
        return ""
    return f"line {line} uses all of {path} after the loop"


def whole_use(owner: LeakOwner, is_use: IsUse = uses_all) -> str:
    """``line 9 uses outputs after the loop``: where the program uses all that is kept, once it is
    gathered; empty where it does nowhere.

    Args:
        is_use: as of ``result_use``.
    """
    variable = _variable_of(owner)
    if variable:
        line = _use_after_loop(owner, is_use)
        return f"line {line} uses {variable} after the loop" if line else ""
    body = tree_of(owner.file) if owner.file else None
    path, line = ("", 0) if body is None else _first_use_elsewhere(body, owner, is_use)
    return f"line {line} uses all of {path}" if line else ""


def _variable_of(owner: LeakOwner) -> str:
    """``samples`` of itself and of ``samples['cat']``; empty where an owner is no variable."""
    variable = owner.name.partition("[")[0]
    return variable if variable.isidentifier() else ""


def _first_use_elsewhere(body: ast.Module, owner: LeakOwner, is_use: IsUse) -> tuple[str, int]:
    """An attribute's name, and the first line that uses all of it outside of the function that fills
    it, or after its loop there; 0 where there is none.
    """
    path = owner.name.partition("[")[0]
    holder, _, name = path.rpartition(".")
    scope = _scope_of(body, owner.line)
    lines = sorted(_lines_that_use(body, holder, name, is_use)) if holder else []
    loop_ends = (last_line_of(loop) for loop in _loops_around(scope, owner.line))
    last_line = max(loop_ends, default=0) or _end_of_scope(scope)
    uses = (use for use in lines if use > last_line or not is_around(scope, use))
    return path, next(uses, 0)


def _is_once_after(body: ast.Module, use: int, filling: int) -> bool:
    """Whether a line runs once in the program, after what fills has run.

    Args:
        use: the line.
        filling: the line that fills.
    """
    places, filled_in = _places_up(body, use), defaultdict[ast.AST, list[int]](list)
    for scope, line in _places_up(body, filling):
        filled_in[scope].append(line)
    if not places or any(_is_in_turns(*place, filled_in) for place in places):
        return False
    return any(
        any(filled < line for filled in filled_in.get(scope, ()))
        or _ends_a_loop_before(scope, line)
        for scope, line in places
    )


def _is_in_turns(scope: ast.AST, line: int, filled_in: Mapping[ast.AST, Sequence[int]]) -> bool:
    """Whether a line is in a loop that does not come as a whole after what fills, as one over the
    columns of a table does.
    """
    return any(
        max(filled_in.get(scope, ()), default=loop.lineno) >= loop.lineno
        for loop in _loops_around(scope, line)
    )


def _places_up(body: ast.Module, line: int) -> list[tuple[ast.AST, int]]:
    """A line and the calls that lead to it, with the functions that they are in; empty where one of
    these is called by nobody in the file, or they are many.
    """
    places: list[tuple[ast.AST, int]] = []
    waiting = [line]
    while waiting:
        line = waiting.pop()
        scope = _scope_of(body, line)
        places.append((scope, line))
        if isinstance(scope, FUNCTIONS):
            calls = list(_lines_that_call(body, scope.name))
            if not calls or len(places) > _MOST_PLACES:
                return []
            waiting += calls
    return places


def _lines_that_call(body: ast.Module, name: str) -> Iterator[int]:
    """Yields the lines that call a function or method of a name."""
    for node in ast.walk(body):
        if isinstance(node, ast.Call) and last_name(node.func) == name:
            yield node.lineno


def _loops_around(scope: ast.AST, line: int) -> list[_Loop]:
    return [loop for loop in _loops_in(scope) if is_around(loop, line)]


def _ends_a_loop_before(scope: ast.AST, line: int) -> bool:
    return any(last_line_of(loop) < line for loop in _loops_in(scope))


def _loops_in(scope: ast.AST) -> Iterator[_Loop]:
    return (node for node in _within(scope) if isinstance(node, LOOPS))


def _end_of_scope(scope: ast.AST) -> int:
    return int(getattr(scope, "end_lineno", 0) or 0)


def _lines_that_use(body: ast.Module, holder: str, name: str, is_use: IsUse) -> Iterator[int]:
    """Yields the lines that use all of an attribute, or of a variable of the function that holds
    it.
    """
    for node in ast.walk(body):
        if is_use(node, name, ast.Attribute):
            yield line_of(node)
        if isinstance(node, FUNCTIONS) and node.name == holder:
            yield from (line_of(part) for part in _within(node) if is_use(part, name, ast.Name))


def _use_after_loop(owner: LeakOwner, is_use: IsUse) -> int:
    """The first line that uses all of a variable after the outermost loop around the line that fills
    it; 0 where there is none.
    """
    body = tree_of(owner.file) if owner.file else None
    if body is None:
        return 0
    scope = _scope_of(body, owner.line)
    last_line = max((last_line_of(loop) for loop in _loops_around(scope, owner.line)), default=0)
    if not last_line:
        return 0
    variable, nodes = _variable_of(owner), list(_within(scope))
    lines = [line_of(node) for node in nodes if is_use(node, variable, ast.Name)]
    if variable != owner.name:  # a dict of lists
        lines += [line_of(node) for node in nodes if goes_through_values(node, variable)]
    return min((use for use in lines if use > last_line), default=0)


def _scope_of(body: ast.Module, line: int) -> ast.AST:
    """The innermost function around a line; the module where there is none."""
    functions = (node for node in ast.walk(body) if isinstance(node, FUNCTIONS))
    around = [node for node in functions if is_around(node, line)]
    return around[-1] if around else body


def _within(scope: ast.AST) -> Iterator[ast.AST]:
    """Yields what is in a function or module, and not in a function inside of it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, FUNCTIONS):
            yield from _within(node)
