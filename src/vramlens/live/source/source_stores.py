"""The user's source: which statements put something somewhere, by the name that they put it under.

Read from the files (or a notebook's cells) with ``ast``; nothing is imported or run. One pass over
a file makes a list of stores: assignments, ``+=``, ``x[k] = v``, calls of methods (``append``,
``update``, ``register_hook``) and ``del``.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from vramlens.ground.source_code import last_name, parsed
from vramlens.live.source.expressions import (
    arguments_of,
    bound_in,
    constant_key,
    is_empty,
    is_own_slice,
    keys_of,
    names_in,
    own_expressions,
    receiver_of,
    text_of,
)

_LONGEST_FILE = 40_000
"""Lines: a second of parsing. Written files are a tenth of it; longer ones are generated."""
_FUNCTION_OWNERS = ("list", "dict", "set", "heapq", "bisect")
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
        function = self
        while name not in function.bound and function.outer is not None:
            function = function.outer
        return function


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
        key_path: the keys on the way to what is stored to, outermost first.
        statement: the statement that it is in.
        loops: how many loops of its function it is in.
        refers_to_itself: whether the value is made from what was there.
        guards: the conditions that it stands under, outermost first; of an exception's handler, what
            it catches.
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
    key_path: tuple[ast.expr, ...] = ()

    @property
    def keys(self) -> tuple[str | None, ...]:
        """The constant keys on the way to what is stored to; None for others."""
        return tuple(map(constant_key, self.key_path))

    @property
    def stored_expressions(self) -> tuple[ast.expr, ...]:
        """What it puts there: the arguments of a call, or the value."""
        return self.arguments or tuple(filter(None, (self.value,)))

    def assigns_beside(self, other: Store) -> bool:
        """Whether it is an assignment in the same function as another statement."""
        return self.how == "assign" and self.function is other.function


class CallSite(NamedTuple):
    """A call, with the function and the statement that it is in, how many loops it is in, and the
    conditions that it stands under.
    """

    call: ast.Call
    function: Function
    statement: ast.stmt
    loops: int
    guards: tuple[ast.expr, ...]


@dataclass(slots=True)
class Module:
    """A file's functions and stores.

    Attributes:
        functions: by the line where their code begins.
        stores: by name.
        calls: by the last name of the function that is called.
        returns: what functions return.
        returned_together: the variables of which functions return several at once.
    """

    file: str
    functions: dict[int, list[Function]] = field(default_factory=dict)
    stores: dict[str, list[Store]] = field(default_factory=dict)
    calls: dict[str, list[CallSite]] = field(default_factory=dict)
    returns: list[tuple[ast.expr, Function]] = field(default_factory=list)
    returned_together: list[tuple[ast.Name, Function]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def function_at(self, line: int, name: str = "") -> Function | None:
        """The function whose code begins at a line."""
        functions = self.functions.get(line, [])
        for function in functions:
            if function.name.rpartition(".")[2] == name:
                return function
        return functions[0] if functions else None

    def all_functions(self) -> Iterator[Function]:
        """Yields every function, by line."""
        return chain.from_iterable(self.functions.values())

    def all_calls(self) -> Iterator[CallSite]:
        """Yields every call, by the name that is called."""
        return chain.from_iterable(self.calls.values())

    def mentions(self, name: str) -> bool:
        """Whether a name stands anywhere in the file."""
        return any(name in line for line in self.lines)


def read_source(file: str) -> Module | None:
    """The stores of a file; None where there is no source, or none that can be read."""
    lines = linecache.getlines(file)
    if not lines or len(lines) > _LONGEST_FILE:
        return None
    return _read(file, "".join(lines))


@lru_cache(maxsize=512)
def _read(file: str, text: str) -> Module | None:
    tree = parsed(text)
    if tree is None:
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
        """Reads the whole file."""
        module = Function(
            name="<module>",
            line=1,
            node=None,
            owner="",
            outer=None,
            bound=frozenset(bound_in(tree.body)),
        )
        self._module.functions.setdefault(0, []).append(module)
        self._body(tree.body, module, "")

    def _body(self, body: list[ast.stmt], function: Function, owner: str) -> None:
        before = self._guards
        for statement in body:
            self._statement_in(statement, function, owner)
            match statement:
                case ast.If(orelse=[], body=[*_, last]) if isinstance(last, _LEAVES):
                    # What follows runs else.
                    self._guards = (*self._guards, _negated(statement.test))
        self._guards = before

    def _guarded_body(
        self, guard: ast.expr, body: list[ast.stmt], function: Function, owner: str
    ) -> None:
        before = self._guards
        self._guards = (*before, guard)
        self._body(body, function, owner)
        self._guards = before

    def _statement_in(self, statement: ast.stmt, function: Function, owner: str) -> None:
        before = self._statement
        self._statement = statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in statement.decorator_list:
                self._expression(decorator, function)
            self._function(statement, function, owner)
        elif isinstance(statement, ast.ClassDef):
            name = f"{owner}.{statement.name}" if owner else statement.name
            self._body(statement.body, function, name)
        elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
            self._loop(statement, function, owner)
        elif isinstance(statement, ast.If):
            self._expression(statement.test, function)
            self._guarded_body(statement.test, statement.body, function, owner)
            contrary = _negated(statement.test)
            self._guarded_body(contrary, statement.orelse, function, owner)
        else:
            self._plain(statement, function, owner)
        self._statement = before

    def _loop(
        self, statement: ast.For | ast.AsyncFor | ast.While, function: Function, owner: str
    ) -> None:
        for expression in own_expressions(statement):
            self._expression(expression, function)
        if not isinstance(statement, ast.While):
            self._assign(statement.target, None, function, owner)
        self._loops += 1
        if isinstance(statement, ast.While):
            self._guarded_body(statement.test, statement.body, function, owner)
        else:
            self._body(statement.body, function, owner)
        self._loops -= 1
        self._body(statement.orelse, function, owner)

    def _plain(self, statement: ast.stmt, function: Function, owner: str) -> None:
        self._stores_of(statement, function, owner)
        for name in ("body", "orelse", "finalbody"):
            body = getattr(statement, name, None)
            if isinstance(body, list):
                self._body(body, function, owner)
        for handler in getattr(statement, "handlers", ()):
            bare = ast.copy_location(ast.Name("BaseException", ast.Load()), handler)
            caught = handler.type or bare
            self._guarded_body(caught, handler.body, function, owner)
        for case in getattr(statement, "cases", ()):
            self._body(case.body, function, owner)
        for expression in own_expressions(statement):
            self._expression(expression, function)

    def _stores_of(self, statement: ast.stmt, function: Function, owner: str) -> None:
        """Adds what a statement itself stores, takes away, or returns."""
        match statement:
            case ast.Assign():
                for target in statement.targets:
                    self._assign(target, statement.value, function, owner)
            case ast.AnnAssign(value=ast.expr()):
                self._assign(statement.target, statement.value, function, owner)
            case ast.AugAssign():
                self._store(statement.target, "add", statement.value, function, owner)
            case ast.Delete():
                for target in statement.targets:
                    self._store(target, "delete", None, function, owner)
            case ast.Return(value=ast.Name() | ast.Attribute() as returned):
                self._module.returns.append((returned, function))
            case ast.Return(value=ast.Tuple(elts=parts)):
                names = (part for part in parts if isinstance(part, ast.Name))
                self._module.returned_together += [(name, function) for name in names]
            case ast.With() | ast.AsyncWith():
                self._enter(statement.items, function, owner)

    def _enter(self, items: list[ast.withitem], function: Function, owner: str) -> None:
        for entered in items:
            if entered.optional_vars is not None:
                self._assign(entered.optional_vars, entered.context_expr, function, owner)

    def _assign(
        self, target: ast.expr, value: ast.expr | None, function: Function, owner: str
    ) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values: list[ast.expr | None] = [value] * len(target.elts)
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                values = list(value.elts)
            for part, part_value in zip(target.elts, values, strict=True):
                self._assign(part, part_value, function, owner)
            return
        how = "item" if isinstance(target, ast.Subscript) else "assign"
        self._store(target, how, value, function, owner)

    def _store(
        self, target: ast.expr, how: str, value: ast.expr | None, function: Function, owner: str
    ) -> None:
        receiver = receiver_of(target)
        if receiver is None or self._statement is None:
            return
        name, base, key = receiver
        is_in_class_body = bool(owner) and not function.owner and function.node is None
        if not base and is_in_class_body:
            base = owner  # an attribute of the class
        names_there = () if value is None else names_in(value)
        self._add(
            Store(
                name=name,
                base=base,
                how=_how_exactly(how, key, value, (name, base)),
                method="",
                value=value,
                arguments=(),
                key=key,
                file=self._module.file,
                line=self._statement.lineno,
                statement=self._statement,
                function=function,
                loops=self._loops,
                refers_to_itself=how == "add" or (base, name) in names_there,
                guards=self._guards,
                key_path=keys_of(target)[: -1 if how == "item" else None],
            )
        )

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
        name = last_name(call.func)
        if name:
            site = CallSite(
                call=call,
                function=function,
                statement=self._statement,
                loops=self._loops,
                guards=self._guards,
            )
            self._module.calls.setdefault(name, []).append(site)
        arguments = arguments_of(call)
        target, key = _target_of_call(call, name, arguments)
        receiver = None if target is None else receiver_of(target)
        if target is None or receiver is None:
            return
        last, base, inner_key = receiver
        method = name
        if last == name and isinstance(call.func, ast.Name):
            base, method = "", "()"
        is_in_lambda = isinstance(function.node, ast.Lambda)
        self._add(
            Store(
                name=last,
                base=base,
                how="call",
                method=method,
                value=_value_of_call(call, arguments),
                arguments=arguments,
                key=key or inner_key,
                file=self._module.file,
                line=call.lineno if is_in_lambda else self._statement.lineno,
                statement=self._statement,
                function=function,
                loops=self._loops,
                refers_to_itself=False,
                guards=self._guards,
                key_path=keys_of(target),
            )
        )

    def _function(self, node: Def, outer: Function, owner: str) -> None:
        parameters = _parameters_of(node.args)
        prefix = owner or ("" if outer.node is None else outer.name)
        if isinstance(node, ast.Lambda):
            name, line, bound = "<lambda>", node.lineno, frozenset(parameters)
        else:
            name = node.name
            line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            bound = frozenset((*parameters, *bound_in(node.body)))
        function = Function(
            name=f"{prefix}.{name}" if prefix else name,
            line=line,
            node=node,
            owner=owner,
            outer=outer,
            parameters=parameters,
            bound=bound,
        )
        self._module.functions.setdefault(line, []).append(function)
        loops, guards, statement = self._loops, self._guards, self._statement
        self._loops, self._guards = 0, ()
        if isinstance(node, ast.Lambda):
            self._expression(node.body, function)
        else:
            self._body(node.body, function, "")
        self._loops, self._guards, self._statement = loops, guards, statement


def _parameters_of(arguments: ast.arguments) -> tuple[str, ...]:
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    parameters += [part for part in (arguments.vararg, arguments.kwarg) if part is not None]
    return tuple(parameter.arg for parameter in parameters)


def _how_exactly(
    how: str, key: ast.expr | None, value: ast.expr | None, receiver: tuple[str, str]
) -> str:
    """How a statement stores, where slices tell more: of ``x = x[-n:]`` and ``x[:] = []``."""
    if how == "assign" and is_own_slice(value, *receiver):
        return "slice"
    if how == "item" and isinstance(key, ast.Slice) and is_empty(value):
        return "delete"
    return how


def _value_of_call(call: ast.Call, arguments: Sequence[ast.expr]) -> ast.expr | None:
    """What a call is given to store: its last argument that is no option (``persistent=False``)."""
    options = {id(word.value) for word in call.keywords if isinstance(word.value, ast.Constant)}
    given = [argument for argument in arguments if id(argument) not in options]
    return next(reversed(given or arguments), None)


def _target_of_call(
    call: ast.Call, name: str, arguments: Sequence[ast.expr]
) -> tuple[ast.expr | None, ast.expr | None]:
    """What a call may store to, and the key."""
    called = call.func
    if name == "setattr" and len(arguments) == 3:  # setattr(self, f"x{i}", value)
        target, key = arguments[0], arguments[1]
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            return ast.Attribute(target, key.value), None
        return target, key
    first = arguments[0] if arguments else None
    key_of_call = first if name in ("setdefault", "setitem") else None
    if not isinstance(called, ast.Attribute):
        return called, key_of_call
    if text_of(called.value) in _FUNCTION_OWNERS:
        return first, key_of_call  # list.append(x, value), heapq.heappush(x, value)
    return called.value, key_of_call


def _negated(condition: ast.expr) -> ast.expr:
    """The opposite of a condition, at its place in the file."""
    return ast.copy_location(ast.UnaryOp(ast.Not(), condition), condition)
