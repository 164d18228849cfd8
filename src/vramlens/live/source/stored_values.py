"""Where the memory of what is kept was asked for, from the source alone: the line that makes the
value.

On a GPU that is being recorded the allocator's history says it exactly, by address; on a CPU nobody
keeps a history. Where its steps were not traced either, the kept value is followed back through the
program: to the assignment of the variable, to the argument of the call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from vramlens.ground.place import Place
from vramlens.ground.source_code import last_name
from vramlens.live.source.expressions import receiver_of, text_of
from vramlens.live.source.source_stores import Function, Module, Store, read_source
from vramlens.live.source.users_source import UsersSource

_HOPS = 8
"""Assignments from a value back to what made it: a pass of a small model in one function. A circle of
names ends there.
"""
_FREE = frozenset((
    "detach", "cpu", "item", "view", "reshape", "flatten", "t", "transpose", "permute", "squeeze", "unsqueeze",
    "expand", "view_as", "requires_grad_", "data_ptr", "numpy", "unbind", "chunk", "split",
    "narrow", "diagonal", "swapaxes",
))  # fmt: skip
_SUBMITS = {
    "submit": 0,
    "apply_async": 0,
    "run_in_executor": 1,
    "to_thread": 0,
    "map": 0,
}  # and where the task is
_WAITS = frozenset((
    "result", "join", "get", "wait", "sleep", "acquire", "recv", "put", "as_completed", "gather", "run",
    "run_until_complete", "drain",
))  # fmt: skip
_PLAIN = frozenset(
    ("tuple", "list", "len", "float", "int", "str", "print", "append", "extend", "add", "update")
)
_BATCH_MAKERS = (
    "torch.rand",
    "torch.zeros",
    "torch.ones",
    "torch.empty",
    "torch.arange",
    "next",
)
_LOSSES = ("loss", "criterion", "cross_entropy", "mse", "mean", "sum", "nll")


class _Origin(NamedTuple):
    """An expression that makes a value, and where it stands."""

    module: Module
    function: Function
    expression: ast.expr
    line: int


def made_at(source: UsersSource, store: Store, *, is_graph: bool) -> Place:
    """The line that asks for the memory of what a statement stores.

    Args:
        is_graph: whether a whole graph is kept: then what the value is computed from counts, not
            the last operation.
    """
    module = read_source(store.file)
    best = Place(store.file, store.line, store.function.name)
    if store.value is None or module is None:
        return best
    origin = _Origin(module, store.function, store.value, store.line)
    visited: set[tuple[str, int, str]] = set()
    for _ in range(_HOPS):
        earlier = _before(source, origin, is_graph=is_graph)
        if earlier is None:
            break
        origin = earlier
        mark = (origin.module.file, origin.line, ast.dump(origin.expression)[:80])
        if mark in visited:
            break
        visited.add(mark)
        best = Place(origin.module.file, origin.line, origin.function.name)
    return best


def only_waits(file: str, line: int) -> bool:
    """Whether a line does nothing but wait for another thread: what appears meanwhile is not its
    own.
    """
    module = read_source(file)
    if module is None:
        return False
    calls = [site.call for site in module.all_calls() if site.call.lineno == line]
    waits: set[int] = set()
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in _WAITS:
            waits.add(id(call))
            waits.update(map(id, ast.walk(call.func)))  # pool.submit(f, x).result()
    return bool(waits) and all(
        id(call) in waits or last_name(call.func) in _PLAIN for call in calls
    )


def _before(source: UsersSource, origin: _Origin, *, is_graph: bool) -> _Origin | None:
    """Where the value came from, one step back; None where it is made here."""
    task = _submitted_task(origin.expression)
    if task is not None:
        return _task_outcome(source, origin, task)
    for name in _sources(origin.expression, is_graph=is_graph):
        bound = origin.function.binds(name)
        assigned = _assignment_before(origin, name, is_graph=is_graph)
        if assigned is not None:
            return assigned
        passed = _argument(source, bound, name) if name in bound.parameters else None
        if passed is not None:
            return passed
    return None


def _submitted_task(expression: ast.expr) -> ast.expr | None:
    """The function that a call hands to other threads: ``f`` of ``pool.submit(f, x)``."""
    if not isinstance(expression, ast.Call) or not isinstance(expression.func, ast.Attribute):
        return None
    place = _SUBMITS.get(expression.func.attr)
    return expression.args[place] if place is not None and place < len(expression.args) else None


def _assignment_before(origin: _Origin, name: str, *, is_graph: bool) -> _Origin | None:
    assignments = (
        store
        for store in origin.module.stores.get(name, ())
        if _assigns_before(store, origin) and not _is_batch(store.value, is_graph=is_graph)
    )
    latest = max(assignments, key=lambda store: store.line, default=None)
    return None if latest is None else _origin_of(origin.module, latest)


def _assigns_before(store: Store, origin: _Origin) -> bool:
    """Whether a statement gives a variable of the same function a value before a line."""
    is_assignment = store.how == "assign" and not store.base and store.value is not None
    if not is_assignment or store.line >= origin.line:
        return False
    return store.function.binds(store.name) is origin.function.binds(store.name)


def _origin_of(module: Module, store: Store) -> _Origin | None:
    if store.value is None:
        return None
    return _Origin(module, store.function, store.value, store.line)


def _task_outcome(source: UsersSource, origin: _Origin, task: ast.expr) -> _Origin | None:
    """What a function returns that is handed to other threads: itself, or an object that is
    called.
    """
    place: _Origin | None = origin._replace(expression=task)
    for _ in range(_HOPS):
        if place is None:
            return None
        returned = _returned(source, place.expression)
        if returned is not None:
            return returned
        place = _earlier_name(source, place)
    return None


def _earlier_name(source: UsersSource, place: _Origin) -> _Origin | None:
    """What a name stands for: the argument of a call, or what was assigned to an attribute."""
    task = place.expression
    name = last_name(task)
    if not name:
        return None
    bound = place.function.binds(name)
    if isinstance(task, ast.Name) and name in bound.parameters:
        return _argument(source, bound, name)
    for store in place.module.stores.get(name, ()):  # self.stage = stage
        if store.how == "assign" and store.value is not None:
            return _origin_of(place.module, store)
    return None


def _returned(source: UsersSource, task: ast.expr) -> _Origin | None:
    """The last thing that a function of this name returns; for a call of a class, its
    ``__call__`` or ``forward``.
    """
    is_instance = isinstance(task, ast.Call)
    name = last_name(task.func if isinstance(task, ast.Call) else task)
    for module in source.modules():
        for function in module.all_functions():
            last = function.name.rpartition(".")[2]
            if is_instance:
                owner = function.owner.rpartition(".")[2]
                is_called = last in ("__call__", "forward") and owner == name
            else:
                is_called = last == name
            returned = _last_return(function) if is_called else None
            if returned is not None:
                return _Origin(module, function, returned, returned.lineno)
    return None


def _last_return(function: Function) -> ast.expr | None:
    if not isinstance(function.node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    statements = (node for node in ast.walk(function.node) if isinstance(node, ast.Return))
    values = [statement.value for statement in statements if statement.value is not None]
    return values[-1] if values else None


def _sources(expression: ast.expr, *, is_graph: bool) -> Iterator[str]:
    """Variables whose memory a value is, or (of a graph) whose graph it goes on."""
    if isinstance(expression, ast.Name):
        yield expression.id
        return
    for part in _parts_kept(expression, is_graph=is_graph):
        yield from _sources(part, is_graph=is_graph)


def _parts_kept(expression: ast.expr, *, is_graph: bool) -> list[ast.expr]:
    """The parts of an expression that its value is made of, or whose graph it goes on."""
    match expression:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return parts
        case ast.Dict(values=parts):
            return parts
        case ast.Subscript(value=part) | ast.Starred(value=part) | ast.Lambda(body=part):
            return [part]
        case ast.Call(func=ast.Attribute(attr=method, value=part)) if method in _FREE:
            return [part]
        case ast.Call(func=called, args=[_, *bound], keywords=named) if _is_partial(called):
            return [*bound, *(keyword.value for keyword in named)]
        case ast.Call() if is_graph and _is_loss(expression):
            called = expression.func
            receiver = [called.value] if isinstance(called, ast.Attribute) else []
            return [*receiver, *expression.args]
        case ast.BinOp() if is_graph:
            return [expression.left, expression.right]
    return []


def _is_partial(called: ast.expr) -> bool:
    return last_name(called) == "partial"


def _is_loss(call: ast.Call) -> bool:
    name = last_name(call.func).lower()
    return any(word in name for word in _LOSSES)


def _is_batch(expression: ast.expr | None, *, is_graph: bool) -> bool:
    if not is_graph or not isinstance(expression, ast.Call):
        return False
    return text_of(expression.func).startswith(_BATCH_MAKERS)


def _argument(source: UsersSource, function: Function, name: str) -> _Origin | None:
    """What a function's callers pass for a parameter; the first call that is found."""
    last = function.name.rpartition(".")[2]
    called = function.owner.rpartition(".")[2] if last == "__init__" else last
    place = function.parameters.index(name) - (1 if function.owner else 0)
    for module in source.modules():
        sites = module.all_calls() if last == "__call__" else module.calls.get(called, ())
        for site in sites:
            passed = _passed(site.call, name, place)
            if passed is None or site.function is function:
                continue
            if last == "__call__" and not _seems_instance(site.call.func, function.owner):
                continue
            return _Origin(module, site.function, passed, site.statement.lineno)
    return None


def _passed(call: ast.Call, name: str, place: int) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[place] if 0 <= place < len(call.args) else None


def _seems_instance(called: ast.expr, owner: str) -> bool:
    """Whether what is called has the name of a class, more or less."""
    receiver = receiver_of(called)
    return receiver is not None and receiver[0].lower() in owner.lower()


_CONVERSIONS = frozenset(
    (
        *("detach", "detach_", "clone", "cpu", "cuda", "to", "contiguous", "requires_grad_"),
        *("float", "half", "bfloat16", "double", "type"),
    )
)
"""Methods of a tensor whose result has as many elements."""


def is_converted(store: Store) -> bool:
    """Whether a statement stores what was there, converted: ``x = x.detach().cpu()``."""
    value = store.value
    while isinstance(value, ast.Call):
        method = value.func
        if not isinstance(method, ast.Attribute) or method.attr not in _CONVERSIONS:
            return False
        value = method.value
    receiver = None if value is None else receiver_of(value)
    return value is not store.value and receiver is not None and receiver[0] == store.name


def target_of(store: Store) -> str:
    """What a statement writes an item to, as it is written: ``app[RESULTS]``; empty where it is
    more than one thing.
    """
    match store.statement:
        case ast.Assign(targets=[ast.Subscript(value=container)]):
            return ast.unparse(container)
    return ""
