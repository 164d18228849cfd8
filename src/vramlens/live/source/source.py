"""The user's source: which statements put something somewhere, by the name that they put it under.

Read from the files (or a notebook's cells) with ``ast``; nothing is imported or run. One pass over
a file makes a list
of stores: assignments, ``+=``, ``x[k] = v``, calls of methods (``append``, ``update``,
    ``register_hook``) and ``del``.
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from vramlens.live.source.expressions import (
    bound_in,
    is_empty,
    is_own_slice,
    keys_of,
    names_in,
    own_expressions,
    receiver_of,
    text_of,
)

_LONGEST_FILE = 40_000  # lines
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
Def = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(slots=True, eq=False)
class Function:
    """A function, a lambda, or (without a node) the module itself.

    Attributes:
        name: qualified, as ``Trainer.step``; ``<module>`` for the module.
        line: where its code begins, decorators included.
        owner: the class whose body it is in, as a qualified name.
        outer: the function or module around it.
        parameters, bound: its parameters; all names that it binds itself.
    """

    name: str
    line: int
    node: Def | None
    owner: str
    outer: Function | None
    parameters: tuple[str, ...] = ()
    bound: frozenset[str] = frozenset()

    @property
    def receiver(self) -> str:
        """What a method calls its instance; empty elsewhere."""
        return self.parameters[0] if self.owner and self.parameters else ""

    def binds(self, name: str) -> Function:
        """The function in which a name used here is bound."""
        here = self
        while name not in here.bound and here.outer is not None:
            here = here.outer
        return here


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """A statement that puts a value somewhere, or takes one away.

    Attributes:
        name: what it is put under: the last name of the receiver, without keys: ``history`` of
            ``self.history[k]``.
        base: the name before that: ``self``; empty for a plain name.
        how: assign, add, item, call, delete, or slice (a part of itself is assigned: what is too
            old is dropped).
        method: of a call.
        value: what is put there, where there is one thing.
        arguments: of a call.
        key: of an item.
        keys: constant keys on the way to what is stored to, outermost first; None for others.
        statement: the statement that it is in.
        loops: how many loops of its function it is in.
        refers_to_itself: whether the value is made from what was there.
        guards: the conditions that it stands under, outermost first.
    """

    name: str
    base: str
    how: str
    method: str
    value: ast.expr | None
    arguments: tuple[ast.expr, ...]
    key: ast.expr | None
    file: str
    line: int
    statement: ast.stmt
    function: Function
    loops: int
    refers_to_itself: bool
    guards: tuple[ast.expr, ...]
    keys: tuple[str | None, ...] = ()


@dataclass(slots=True)
class Module:
    """A file's functions and stores.

    Attributes:
        functions: by the line where their code begins.
        stores: by name.
        calls: of functions by their last name, with the function that calls and the statement.
        returns: what functions return.
    """

    file: str
    functions: dict[int, list[Function]] = field(default_factory=dict)
    stores: dict[str, list[Store]] = field(default_factory=dict)
    calls: dict[str, list[tuple[ast.Call, Function, ast.stmt, int]]] = field(default_factory=dict)
    returns: list[tuple[ast.expr, Function]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def function_at(self, line: int, name: str = "") -> Function | None:
        """The function whose code begins at a line."""
        found = self.functions.get(line, [])
        return next(
            (one for one in found if one.name.rpartition(".")[2] == name),
            found[0] if found else None,
        )


def read_source(file: str) -> Module | None:
    """The stores of a file; None where there is no source, or none that can be read."""
    lines = linecache.getlines(file)
    if not lines or len(lines) > _LONGEST_FILE:
        return None
    return _read(file, "".join(lines))


@lru_cache(maxsize=512)
def _read(file: str, text: str) -> Module | None:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    module = Module(file, lines=text.splitlines())
    try:
        _Reader(module).module(tree)
    except RecursionError:
        return None
    return module


class _Reader:
    """Walks a file once."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._statement: ast.stmt | None = None
        self._guards: tuple[ast.expr, ...] = ()
        self._loops = 0

    def module(self, tree: ast.Module) -> None:
        whole = Function("<module>", 1, None, "", None, bound=frozenset(bound_in(tree.body)))
        self._module.functions.setdefault(0, []).append(whole)
        self._body(tree.body, whole, "")

    def _body(self, body: list[ast.stmt], function: Function, owner: str) -> None:
        before = self._guards
        for statement in body:
            self._one(statement, function, owner)
            if (
                isinstance(statement, ast.If)
                and not statement.orelse
                and isinstance(statement.body[-1], _LEAVES)
            ):
                self._guards = (
                    *self._guards,
                    ast.UnaryOp(ast.Not(), statement.test),
                )  # what follows runs else
        self._guards = before

    def _one(self, statement: ast.stmt, function: Function, owner: str) -> None:
        before = self._statement
        self._statement = statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in statement.decorator_list:
                self._expression(decorator, function)
            self._function(statement, function, owner)
        elif isinstance(statement, ast.ClassDef):
            name = f"{owner}.{statement.name}" if owner else statement.name
            self._body(statement.body, function, name)
        elif isinstance(statement, _LOOPS):
            for expression in own_expressions(statement):
                self._expression(expression, function)
            if isinstance(statement, (ast.For, ast.AsyncFor)):
                self._assign(statement.target, None, function, owner)
            guards = self._guards
            if isinstance(statement, ast.While):
                self._guards = (*guards, statement.test)
            self._loops += 1
            self._body(statement.body, function, owner)
            self._loops -= 1
            self._guards = guards
            self._body(statement.orelse, function, owner)
        elif isinstance(statement, ast.If):
            self._expression(statement.test, function)
            guards = self._guards
            self._guards = (*guards, statement.test)
            self._body(statement.body, function, owner)
            self._guards = (*guards, ast.UnaryOp(ast.Not(), statement.test))
            self._body(statement.orelse, function, owner)
            self._guards = guards
        else:
            self._plain(statement, function, owner)
        self._statement = before

    def _plain(self, statement: ast.stmt, function: Function, owner: str) -> None:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                self._assign(target, statement.value, function, owner)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self._assign(statement.target, statement.value, function, owner)
        elif isinstance(statement, ast.AugAssign):
            self._store(statement.target, "add", statement.value, function, owner)
        elif isinstance(statement, ast.Delete):
            for target in statement.targets:
                self._store(target, "delete", None, function, owner)
        elif isinstance(statement, ast.Return) and isinstance(
            statement.value, (ast.Name, ast.Attribute)
        ):
            self._module.returns.append((statement.value, function))
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, item.context_expr, function, owner)
        for name in ("body", "orelse", "finalbody"):
            if isinstance(getattr(statement, name, None), list):
                self._body(getattr(statement, name), function, owner)
        for handler in getattr(statement, "handlers", ()):
            self._body(handler.body, function, owner)
        for case in getattr(statement, "cases", ()):
            self._body(case.body, function, owner)
        for expression in own_expressions(statement):
            self._expression(expression, function)

    def _assign(
        self, target: ast.expr, value: ast.expr | None, function: Function, owner: str
    ) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts: list[Any] = [value] * len(target.elts)
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                parts = list(value.elts)
            for part, one in zip(target.elts, parts, strict=True):
                self._assign(part, one, function, owner)
            return
        self._store(
            target,
            "item" if isinstance(target, ast.Subscript) else "assign",
            value,
            function,
            owner,
        )

    def _store(
        self, target: ast.expr, how: str, value: ast.expr | None, function: Function, owner: str
    ) -> None:
        found = receiver_of(target)
        if found is None or self._statement is None:
            return
        name, base, key = found
        if how == "add" and isinstance(target, ast.Subscript):
            key = key or target.slice
        if not base and owner and not function.owner and function.node is None:
            base = owner  # in a class body: an attribute of the class
        if how == "assign" and is_own_slice(value, name, base):
            how = "slice"
        if how == "item" and isinstance(key, ast.Slice) and is_empty(value):
            how = "delete"
        refers = how == "add" or (
            value is not None and any(pair == (base, name) for pair in names_in(value))
        )
        self._add(Store(
            name, base, how, "", value, (), key, self._module.file, self._statement.lineno, self._statement, function,
            self._loops, refers, self._guards, keys_of(target)[: -1 if how == "item" else None],
        ))  # fmt: skip

    def _add(self, store: Store) -> None:
        self._module.stores.setdefault(store.name, []).append(store)

    def _expression(self, expression: ast.expr, function: Function) -> None:
        waiting: list[ast.AST] = [expression]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Lambda):
                self._function(node, function, "")
                continue
            if isinstance(node, ast.NamedExpr):
                self._store(node.target, "assign", node.value, function, "")
            if isinstance(node, ast.Call):
                self._call(node, function)
            waiting.extend(ast.iter_child_nodes(node))

    def _call(self, call: ast.Call, function: Function) -> None:
        if self._statement is None:
            return
        called = call.func
        name = (
            called.attr
            if isinstance(called, ast.Attribute)
            else called.id
            if isinstance(called, ast.Name)
            else ""
        )
        if name:
            self._module.calls.setdefault(name, []).append(
                (call, function, self._statement, self._loops)
            )
        arguments = (*call.args, *(keyword.value for keyword in call.keywords))
        target: ast.expr | None = called.value if isinstance(called, ast.Attribute) else called
        value: ast.expr | None = arguments[-1] if arguments else None
        key: ast.expr | None = (
            arguments[0] if name in ("setdefault", "setitem") and arguments else None
        )
        if name == "setattr" and len(arguments) == 3:  # setattr(self, f"x{i}", value)
            target, key = arguments[0], arguments[1]
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                target, key = ast.Attribute(target, key.value), None
        elif isinstance(called, ast.Attribute) and text_of(called.value) in (
            "list",
            "dict",
            "set",
            "heapq",
            "bisect",
        ):
            target = (
                arguments[0] if arguments else None
            )  # list.append(x, value), heapq.heappush(x, value)
        if target is None:
            return
        found = receiver_of(target)
        if found is None:
            return
        last, base, inner = found
        if last == name and isinstance(called, ast.Name):
            base, method = "", "()"
        else:
            method = name
        self._add(Store(
            last, base, "call", method, value, tuple(arguments), key or inner, self._module.file,
            call.lineno if isinstance(function.node, ast.Lambda) else self._statement.lineno, self._statement, function,
            self._loops, False, self._guards, keys_of(target),
        ))  # fmt: skip

    def _function(self, node: Def, outer: Function, owner: str) -> None:
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
        parameters = tuple(argument.arg for argument in every)
        if isinstance(node, ast.Lambda):
            name, line = "<lambda>", node.lineno
            body: list[ast.stmt] = []
            bound = frozenset(parameters)
        else:
            name, body = node.name, node.body
            line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            bound = frozenset((*parameters, *bound_in(body)))
        prefix = owner or ("" if outer.node is None else outer.name)
        function = Function(
            f"{prefix}.{name}" if prefix else name, line, node, owner, outer, parameters, bound
        )
        self._module.functions.setdefault(line, []).append(function)
        loops, guards, statement = self._loops, self._guards, self._statement
        self._loops, self._guards = 0, ()
        if isinstance(node, ast.Lambda):
            self._expression(node.body, function)
        else:
            self._body(body, function, "")
        self._loops, self._guards, self._statement = loops, guards, statement
