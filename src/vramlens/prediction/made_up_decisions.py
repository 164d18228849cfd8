"""Decisions by made-up values: where the user's code ended a loop or chose a branch by a number that
nobody knows.

A run may decide otherwise there, and have another peak. A number is a number to Python, so which
ones are made up is followed through the source: from the lines that asked for such values, through
assignments, calls and what functions return, to what tests ask.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vramlens.ground.source_code import (
    FUNCTIONS,
    called,
    last_line_of,
    last_name,
    parsed_file,
)

_MOST_PASSES = 5
_SAYS_NOTHING_OF_VALUES = {"len", "isinstance", "type", "hasattr", "id", "print"}
_ENDINGS = (ast.Break, ast.Return)


@dataclass(frozen=True, slots=True)
class Decision:
    """A loop whose end, or a branch whose taking a made-up number decides.

    Attributes:
        file, line: of the test.
        is_loop: whether it is a loop.
        first, last: the lines of the loop, or of the branch and its ``else``.
        asked_by: the lowest line of a turn at which the number may be asked for; None where it is
            asked for before all of these lines.
        has_other_end: of a loop, whether anything but such a number may end it: a cap on its turns.
    """

    file: str
    line: int
    is_loop: bool
    first: int
    last: int
    asked_by: int | None = None
    has_other_end: bool = True

    def holds(self, file: str, line: int) -> bool:
        """Whether a line is one of them."""
        return self.first <= line <= self.last and file == self.file


def made_up_decisions(
    files: Iterable[str], asked_lines: dict[str, set[int]]
) -> tuple[Decision, ...]:
    """The loops and branches that made-up values decide, in the order of the files.

    Args:
        files: the user's that ran.
        asked_lines: by file, those that were given such a value.
    """
    trees = {file: tree for file in files if (tree := parsed_file(file)) is not None}
    spread = _Spread(trees.values())
    sizes = -1
    for _ in range(_MOST_PASSES):
        decisions = [
            decision
            for file, tree in trees.items()
            for decision in _decided_in(file, tree, asked_lines.get(file, set()), spread)
        ]
        if sizes == spread.size:
            break
        sizes = spread.size
    return tuple(decisions)


def places_of(decisions: Iterable[Decision]) -> tuple[tuple[str, int], ...]:
    """The files and lines of the tests, each once."""
    return tuple(dict.fromkeys((decision.file, decision.line) for decision in decisions))


def _decided_in(
    file: str, tree: ast.Module, asked_lines: set[int], spread: _Spread
) -> list[Decision]:
    """What the tests of one file decide that ask for made-up values, by line."""
    decided = _Decided(file)
    scopes = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, *FUNCTIONS))]
    for scope in scopes:
        flow = _Flow(scope, asked_lines, spread, decided)
        flow.follow(scope.body, set(spread.parameters_of(scope)))
    return decided.by_line()


class _Decided:
    """Gathers what the tests of one file decide."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._found: dict[tuple[int, bool], Decision] = {}

    def by_line(self) -> list[Decision]:
        """All that was found."""
        return [decision for _, decision in sorted(self._found.items())]

    def branch(self, statement: ast.If, loops: Sequence[ast.stmt]) -> None:
        """A test chooses a branch, and ends the innermost loop around it where a branch does."""
        first = max(statement.body[0].lineno, last_line_of(statement.test) + 1)
        self._add(
            Decision(
                file=self._file,
                line=statement.lineno,
                is_loop=False,
                first=first,
                last=last_line_of(statement),
            )
        )
        if loops and _leaves(statement):
            self._ending(
                statement.lineno, loops[-1].lineno, loops[-1], last_line_of(statement.test)
            )

    def loop(self, loop: Any, asked_by: int | None) -> None:
        """A loop's own test ends it."""
        first = loop.lineno if isinstance(loop, ast.While) else loop.body[0].lineno
        self._ending(loop.lineno, first, loop, asked_by)

    def _ending(self, line: int, first: int, loop: ast.stmt, asked_by: int | None) -> None:
        has_other_end = _count_of_ends(loop) > 1
        last = last_line_of(loop)
        self._add(
            Decision(
                file=self._file,
                line=line,
                is_loop=True,
                first=first,
                last=last,
                asked_by=asked_by,
                has_other_end=has_other_end,
            )
        )

    def _add(self, decision: Decision) -> None:
        """Of two ways to find one, that counts which leaves less sure."""
        key = decision.line, decision.is_loop
        if key not in self._found or decision.asked_by is None:
            self._found[key] = decision


def _parts(statement: ast.If) -> tuple[list[ast.stmt], list[ast.stmt]]:
    return statement.body, statement.orelse


def _count_of_ends(loop: Any) -> int:
    """In how many ways a loop may end: the parts of its own test, or its iterator, and those of
    each test that leaves it.
    """
    if isinstance(loop, ast.While):
        own_ends = 0 if isinstance(loop.test, ast.Constant) else _count_of_parts(loop.test)
    else:
        own_ends = int(called(loop.iter) != "count")
    tests = [node for node in ast.walk(loop) if isinstance(node, ast.If) and _leaves(node)]
    return own_ends + sum(_count_of_parts(node.test) for node in tests)


def _count_of_parts(test: ast.expr) -> int:
    return len(test.values) if isinstance(test, ast.BoolOp) else 1


def _leaves(statement: ast.If) -> bool:
    """Whether a branch ends the loop around it."""
    return any(part and isinstance(part[-1], _ENDINGS) for part in _parts(statement))


class _Spread:
    """What made-up values reach beyond one function, by its name alone.

    Attributes:
        functions: those that return one.
        attributes: those that one was assigned to.
    """

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self.functions: set[str] = set()
        self.attributes: set[str] = set()
        self._parameters: dict[ast.AST, set[str]] = {}
        self._definitions: dict[str, list[Any]] = {}
        for node in (node for tree in trees for node in ast.walk(tree)):
            if isinstance(node, FUNCTIONS):
                self._definitions.setdefault(node.name, []).append(node)

    @property
    def size(self) -> int:
        """How much it is; it never becomes less."""
        parameters = sum(map(len, self._parameters.values()))
        return len(self.functions) + len(self.attributes) + parameters

    def parameters_of(self, scope: ast.AST) -> set[str]:
        """The parameters of a function that were given one."""
        return self._parameters.get(scope, set())

    def give(self, name: str, arguments: list[bool]) -> None:
        """A function is called; ``arguments`` says which by position are made up. An object that is
        called is taken for any that can be.
        """
        callable_objects = self._definitions.get("__call__", [])
        for function in self._definitions.get(name, callable_objects):
            names = [parameter.arg for parameter in function.args.args]
            parameter_names = names[1:] if names[:1] == ["self"] else names
            made_up_parameters = {
                name for name, is_given in zip(parameter_names, arguments, strict=False) if is_given
            }
            self._parameters.setdefault(function, set()).update(made_up_parameters)


class _Flow:
    """Follows made-up values through one function, statement by statement.

    Args:
        decided: takes the tests that ask for one.
    """

    def __init__(
        self, scope: Any, asked_lines: set[int], spread: _Spread, decided: _Decided
    ) -> None:
        self._loops: list[ast.stmt] = []
        self._name = getattr(scope, "name", "")
        self._asked_lines, self._spread, self._decided = asked_lines, spread, decided
        self._follow_by: dict[type, Callable[[Any, set[str]], set[str]]] = {
            ast.If: self._if,
            ast.While: self._loop,
            ast.For: self._loop,
            ast.AsyncFor: self._loop,
            ast.With: self._block,
            ast.AsyncWith: self._block,
            ast.Try: self._try,
            ast.Assign: self._assign,
            ast.AnnAssign: self._assign,
            ast.AugAssign: self._assign,
            ast.Return: self._return,
            ast.Expr: self._expression,
        }

    def follow(self, body: Iterable[ast.stmt], names: set[str]) -> set[str]:
        """The names that hold made-up values after some statements, by those before them."""
        for statement in body:
            follow = self._follow_by.get(type(statement))
            names = names if follow is None else follow(statement, names)
        return names

    def _if(self, statement: ast.If, names: set[str]) -> set[str]:
        is_decided = self._asks(statement, statement.test, names) and not _is_check(statement)
        if is_decided:
            self._decided.branch(statement, self._loops)
        taken = self.follow(statement.body, set(names))
        after = taken | self.follow(statement.orelse, set(names))
        # What a branch sets depends on which one was chosen.
        return after | _variables_set((*statement.body, *statement.orelse)) if is_decided else after

    def _loop(self, loop: Any, names: set[str]) -> set[str]:
        self._loops.append(loop)
        for turn in range(2):  # what a turn leaves the next one finds
            if isinstance(loop, ast.While):
                if self._asks(loop, loop.test, names):
                    self._decided.loop(loop, self._lowest_asked(loop, names, turn))
            else:
                is_made_up = self._is_made_up(loop.iter, names)
                if is_made_up and called(loop.iter) == "range":
                    self._decided.loop(loop, None)
                names = _assigned(loop.target, names, is_made_up=is_made_up)
            names = names | self.follow(loop.body, set(names))
        self._loops.pop()
        return self.follow(loop.orelse, names)

    def _lowest_asked(self, loop: ast.While, names: set[str], turn: int) -> int | None:
        """The lowest line at which the number may be asked for that a loop's test asks for."""
        made_up_names = names | self._spread.attributes
        if made_up_names.isdisjoint(map(last_name, ast.walk(loop.test))):
            return last_line_of(loop.test)  # the test itself asks, or a function that it calls
        return None if turn == 0 else last_line_of(loop)

    def _block(self, block: Any, names: set[str]) -> set[str]:
        return self.follow(block.body, names)

    def _try(self, block: ast.Try, names: set[str]) -> set[str]:
        after = self.follow([*block.body, *block.orelse], set(names))
        for handler in block.handlers:
            after |= self.follow(handler.body, set(names))
        return self.follow(block.finalbody, after)

    def _assign(self, statement: Any, names: set[str]) -> set[str]:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        pairs = [pair for target in targets for pair in _pairs(target, statement.value)]
        after = names
        for target, value in pairs:
            asks = self._is_made_up if value is statement.value else self._is_given
            is_made_up = value is not None and asks(value, names)
            if isinstance(statement, ast.AugAssign):
                is_made_up = is_made_up or self._is_made_up(target, names)
            if is_made_up:
                self._spread.attributes.update(_attributes_in(target))
            after = _assigned(target, after, is_made_up=is_made_up)
        return after

    def _return(self, statement: ast.Return, names: set[str]) -> set[str]:
        if statement.value is not None and self._is_made_up(statement.value, names):
            self._spread.functions.add(self._name)
        return names

    def _expression(self, statement: ast.Expr, names: set[str]) -> set[str]:
        self._is_made_up(statement.value, names)  # a function is given it
        return names

    def _asks(self, statement: Any, test: ast.expr, names: set[str]) -> bool:
        """Whether a test asks for a made-up value, rather than what stands beside it in one line."""
        body = statement.body[0]
        is_beside = body.lineno == statement.lineno and any(
            isinstance(node, ast.Call) for node in ast.walk(body)
        )
        return self._depends(test, names) or (not is_beside and self._is_asked(test))

    def _is_made_up(self, value: ast.expr, names: set[str]) -> bool:
        return self._depends(value, names) or self._is_asked(value)

    def _is_asked(self, value: ast.expr) -> bool:
        lines = range(value.lineno, last_line_of(value) + 1)
        return any(line in self._asked_lines for line in lines)

    def _depends(self, value: ast.AST, names: set[str]) -> bool:
        """Whether a value is computed from made-up ones. What a tensor is beside its values, such as
        its shape, is not.
        """
        if isinstance(value, ast.Name):
            return value.id in names
        if isinstance(value, ast.Attribute):
            return value.attr in self._spread.attributes or (
                not isinstance(value.value, (ast.Name, ast.Attribute))
                and self._depends(value.value, names)
            )
        if isinstance(value, ast.Call):
            return self._call(value, names)
        parts = [self._depends(part, names) for part in ast.iter_child_nodes(value)]
        return any(parts)

    def _call(self, call: ast.Call, names: set[str]) -> bool:
        name = called(call)
        if name in _SAYS_NOTHING_OF_VALUES:
            return False
        made_up_by_position = [self._is_given(argument, names) for argument in call.args]
        named = [self._depends(keyword.value, names) for keyword in call.keywords]
        self._spread.give(name, made_up_by_position)
        return name in self._spread.functions or any(made_up_by_position) or any(named)

    def _is_given(self, argument: ast.expr, names: set[str]) -> bool:
        is_plain = isinstance(argument, (ast.Name, ast.Attribute, ast.Constant))
        return self._depends(argument, names) or (not is_plain and self._is_asked(argument))


def _is_check(statement: ast.If) -> bool:
    """Whether a branch only ends the program, or prints: it changes no memory."""
    return not statement.orelse and all(
        isinstance(step, (ast.Raise, ast.Pass))
        or (isinstance(step, ast.Expr) and called(step.value) == "print")
        for step in statement.body
    )


def _pairs(target: ast.expr, value: ast.expr | None) -> list[tuple[ast.expr, ast.expr | None]]:
    """Which part of a value an assignment gives to which target."""
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return [(target, value)]
    is_starred = any(isinstance(part, ast.Starred) for part in (*target.elts, *value.elts))
    if is_starred or len(target.elts) != len(value.elts):
        return [(target, value)]
    pairs = zip(target.elts, value.elts, strict=True)
    return [pair for target_part, value_part in pairs for pair in _pairs(target_part, value_part)]


def _assigned(target: ast.expr, names: set[str], *, is_made_up: bool) -> set[str]:
    """The names that hold made-up values after an assignment; a part of a whole leaves the rest as
    it is.
    """
    if isinstance(target, ast.Subscript):
        whole_name = target.value.id if isinstance(target.value, ast.Name) else None
        return names | {whole_name} if is_made_up and whole_name else names
    assigned_names = _variables_set([target])
    return names | assigned_names if is_made_up else names - assigned_names


def _variables_set(parts: Iterable[ast.AST]) -> set[str]:
    """The variables that some parts of a source set."""
    nodes = (node for part in parts for node in ast.walk(part))
    return {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _attributes_in(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
