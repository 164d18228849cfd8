"""Where the memory of what is kept was asked for, from the source alone: the line that makes the
value.

On a GPU that is being recorded the allocator's history says it exactly, by address; on a CPU nobody
keeps a history. Where its steps were not traced either, the kept value is followed back through the
program: to the assignment of the variable, to the argument of the call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from vramlens.live.holder.keeper import Statements
from vramlens.live.source.expressions import receiver_of
from vramlens.live.source.source import Function, Module, Store, read_source

_HOPS = 8
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
_LOSSES = ("loss", "criterion", "cross_entropy", "mse", "mean", "sum", "nll")


@dataclass(frozen=True, slots=True)
class MadeAt:
    """A line that makes a value."""

    file: str
    line: int
    function: str


def made_at(statements: Statements, store: Store, *, is_graph: bool) -> MadeAt:
    """The line that asks for the memory of what a statement stores.

    Args:
        is_graph: whether a whole graph is kept: then what the value is computed from counts, not
            the last operation.
    """
    best = MadeAt(store.file, store.line, store.function.name)
    value = store.value
    module = read_source(store.file)
    if value is None or module is None:
        return best
    seen: set[tuple[str, int, str]] = set()
    function, line = store.function, store.line
    for _ in range(_HOPS):
        step = _before(statements, module, function, value, line, is_graph=is_graph)
        if step is None:
            break
        module, function, value, line = step
        mark = (module.file, line, ast.dump(value)[:80])
        if mark in seen:
            break
        seen.add(mark)
        best = MadeAt(module.file, line, function.name)
    return best


def only_waits(file: str, line: int) -> bool:
    """Whether a line does nothing but wait for another thread: what appears meanwhile is not its
    own.
    """
    module = read_source(file)
    if module is None:
        return False
    calls = {
        name: [call for call, _, _, _ in found if call.lineno == line]
        for name, found in module.calls.items()
    }
    explained: set[int] = set()
    for name in _WAITS:
        for call in calls.get(name, ()):
            if isinstance(call.func, ast.Attribute):
                explained |= {id(node) for node in ast.walk(call.func)} | {
                    id(call)
                }  # pool.submit(f, x).result()
    return bool(explained) and all(
        id(call) in explained or name in _PLAIN for name, found in calls.items() for call in found
    )


def _before(
    statements: Statements,
    module: Module,
    function: Function,
    value: ast.expr,
    line: int,
    *,
    is_graph: bool,
) -> tuple[Module, Function, ast.expr, int] | None:
    """Where the value came from, one step back; None where it is made here."""
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else ""
        place = _SUBMITS.get(name)
        if place is not None and place < len(value.args):
            return _result_of(statements, module, function, value.args[place])
    for name in _sources(value, is_graph=is_graph):
        assigned = [
            store
            for store in module.stores.get(name, ())
            if store.how == "assign"
            and not store.base
            and store.value is not None
            and store.function.binds(name) is function.binds(name)
            and store.line != line
            and not _is_data(store.value, is_graph=is_graph)
        ]
        before = [store for store in assigned if store.line < line]
        if before:
            store = max(before, key=lambda one: one.line)
            if store.value is not None:
                return module, store.function, store.value, store.line
        bound = function.binds(name)
        if name in bound.parameters:
            found = _argument(statements, bound, name)
            if found is not None:
                return found
    return None


def _result_of(
    statements: Statements, module: Module, function: Function, task: ast.expr
) -> tuple[Module, Function, ast.expr, int] | None:
    """What a function returns that is handed to other threads: itself, or an object that is
    called.
    """
    for _ in range(_HOPS):
        found = _returned(statements, task)
        if found is not None:
            return found
        if not isinstance(task, (ast.Name, ast.Attribute)):
            return None
        name = task.id if isinstance(task, ast.Name) else task.attr
        bound = function.binds(name)
        if isinstance(task, ast.Name) and name in bound.parameters:
            given = _argument(statements, bound, name)
        else:  # self.stage = stage
            given = next(
                (
                    (module, store.function, store.value, store.line)
                    for store in module.stores.get(name, ())
                    if store.how == "assign" and store.value is not None
                ),
                None,
            )
        if given is None:
            return None
        module, function, task, _ = given
    return None


def _returned(
    statements: Statements, task: ast.expr
) -> tuple[Module, Function, ast.expr, int] | None:
    """The last thing that a function of this name returns; for a call of a class, its
    ``__call__`` or ``forward``.
    """
    made = task.func if isinstance(task, ast.Call) else task
    name = (
        made.id
        if isinstance(made, ast.Name)
        else made.attr
        if isinstance(made, ast.Attribute)
        else ""
    )
    for module in statements.modules():
        for functions in module.functions.values():
            for function in functions:
                last = function.name.rpartition(".")[2]
                owner = function.owner.rpartition(".")[2]
                is_it = (
                    last in ("__call__", "forward") and owner == name
                    if isinstance(task, ast.Call)
                    else last == name
                )
                if is_it and isinstance(function.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    returns = [
                        one
                        for one in ast.walk(function.node)
                        if isinstance(one, ast.Return) and one.value
                    ]
                    if returns and returns[-1].value is not None:
                        return module, function, returns[-1].value, returns[-1].value.lineno
    return None


def _sources(value: ast.expr, *, is_graph: bool) -> Iterator[str]:
    """Variables whose memory a value is, or (of a graph) whose graph it goes on."""
    if isinstance(value, ast.Name):
        yield value.id
    elif isinstance(value, (ast.Tuple, ast.List, ast.Set)):
        for part in value.elts:
            yield from _sources(part, is_graph=is_graph)
    elif isinstance(value, ast.Dict):
        for one in value.values:
            yield from _sources(one, is_graph=is_graph)
    elif isinstance(value, (ast.Subscript, ast.Starred)):
        yield from _sources(value.value, is_graph=is_graph)
    elif isinstance(value, ast.Lambda):
        yield from _sources(value.body, is_graph=is_graph)
    elif isinstance(value, ast.Call):
        called = value.func
        last = (
            called.attr
            if isinstance(called, ast.Attribute)
            else called.id
            if isinstance(called, ast.Name)
            else ""
        )
        if isinstance(called, ast.Attribute) and last in _FREE:
            yield from _sources(called.value, is_graph=is_graph)
        elif is_graph and any(word in last.lower() for word in _LOSSES):
            if isinstance(called, ast.Attribute):
                yield from _sources(called.value, is_graph=is_graph)
            for argument in value.args:
                yield from _sources(argument, is_graph=is_graph)
    elif isinstance(value, ast.BinOp) and is_graph:
        yield from _sources(value.left, is_graph=is_graph)
        yield from _sources(value.right, is_graph=is_graph)


def _is_data(value: ast.expr, *, is_graph: bool) -> bool:
    """Whether a value is a batch, from which no graph goes on."""
    if not is_graph or not isinstance(value, ast.Call):
        return False
    text = ast.unparse(value.func)
    return text.startswith(
        ("torch.rand", "torch.zeros", "torch.ones", "torch.empty", "torch.arange", "next")
    )


def _argument(
    statements: Statements, function: Function, name: str
) -> tuple[Module, Function, ast.expr, int] | None:
    """What a function's callers pass for a parameter; the first call that is found."""
    last = function.name.rpartition(".")[2]
    is_made = last in ("__init__", "__call__")
    called = function.owner.rpartition(".")[2] if last == "__init__" else last
    place = function.parameters.index(name) - (1 if function.owner else 0)
    for module in statements.modules():
        names = [called] if not is_made or last == "__init__" else list(module.calls)
        for one in names:
            for call, caller, statement, _ in module.calls.get(one, ()):
                value = next(
                    (keyword.value for keyword in call.keywords if keyword.arg == name), None
                )
                if value is None and 0 <= place < len(call.args):
                    value = call.args[place]
                if value is not None and caller is not function:
                    found = receiver_of(call.func)
                    if last == "__call__" and (
                        found is None or found[0].lower() not in function.owner.lower()
                    ):
                        continue
                    return module, caller, value, statement.lineno
    return None
