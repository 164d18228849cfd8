"""The statement that keeps something: found in the user's source by the names along a chain.

The chain says under which name the container is held (an attribute of a class, a variable of a
function, a global, a closure's variable, a parameter's default); the source says which statements
put something under that name. Statements that let things pile up come before those that merely set;
in the class, function or module that owns the name before
elsewhere. Other names of the same object are followed: parameters that it is passed to, variables
    it is assigned to.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vramlens.live.heap.objects import (
    attributes_of,
    class_name,
    code_of,
    dict_items,
    is_users,
)
from vramlens.live.heap.search import Search
from vramlens.live.holder.chain import Chain
from vramlens.live.source.expressions import hands_over, receiver_of
from vramlens.live.source.searched_names import Wanted, code_for, wanted_names
from vramlens.live.source.source import Function, Module, Store, read_source
from vramlens.live.source.statement_scores import (
    class_around,
    is_one,
    likeness,
    strength,
    value_made_at,
)

_MOST_FILES = 400
_NAMED = ("attribute", "class attribute", "global", "variable", "closure", "default", "root")
_NAMESPACE = (
    "register_buffer",
    "register_parameter",
    "add_module",
    "register_module",
    "__setattr__",
)
_HOPS = 3


@dataclass(frozen=True, slots=True)
class Keeper:
    """A statement that keeps.

    Attributes:
        store: the statement; None where only a line is known.
        file, line, function: where.
        others: all statements found under the same names, best first.
        score: how well it fits.
    """

    file: str
    line: int
    function: str
    store: Store | None = None
    others: tuple[Store, ...] = ()
    score: int = 0


class Statements:
    """Finds statements in the user's files."""

    def __init__(self, search: Search, ran: set[tuple[str, int]] | None = None) -> None:
        """Prepares.

        Args:
            ran: lines that are known to have run in whole steps; None where that is not known.
        """
        self._search, self._ran = search, ran
        self._files: list[str] | None = None
        self._made: Any = None

    def files(self) -> list[str]:
        """The user's files: those of modules, and of what runs or was reached from there."""
        if self._files is None:
            found: dict[str, None] = {}
            for module in list(sys.modules.values()):
                names = (
                    getattr(module, "__dict__", None) if type(module) is types.ModuleType else None
                )
                file = names.get("__file__") if type(names) is dict else None
                if type(file) is str and file.endswith(".py") and is_users(file):
                    found[file] = None
            for root in self._search.roots.values():
                if root.code is not None and is_users(root.code.co_filename):
                    found[root.code.co_filename] = None
                if root.kind == "module" and root.tier == 0:
                    for _, value in dict_items(root.value):
                        if type(value) is types.FunctionType and is_users(
                            value.__code__.co_filename
                        ):
                            found[value.__code__.co_filename] = None
            for frame in sys._current_frames().values():
                here: types.FrameType | None = frame
                while here is not None:
                    if is_users(here.f_code.co_filename):
                        found[here.f_code.co_filename] = None
                    here = here.f_back
            self._files = list(found)[:_MOST_FILES]
        return self._files

    def modules(self) -> Iterator[Module]:
        """The sources of all of them."""
        for file in self.files():
            module = read_source(file)
            if module is not None:
                yield module

    def function_of(self, code: types.CodeType) -> tuple[Module, Function] | None:
        """The source of a code object."""
        module = read_source(code.co_filename)
        if module is None:
            return None
        if code.co_name == "<module>":
            return module, module.functions[0][0]
        found = module.function_at(code.co_firstlineno, code.co_name)
        return None if found is None else (module, found)

    def keeper(
        self,
        chain: Chain,
        held: Any,
        *,
        is_graph: bool,
        made: Any = None,
        below: Sequence[Any] = (),
    ) -> Keeper | None:
        """The statement that puts things into the last object of a chain.

        Args:
            held: an example of what it keeps.
            is_graph: whether what is kept is an autograd graph: then nothing detached explains it.
            made: the line (file, line) that asks for the memory, where it is known.
            below: what is on the way from the container to the tensor.
        """
        self._made = made
        special = self._special(chain) or self._hook(chain, held)
        if special is not None:
            return special
        best: Keeper | None = None
        for want in wanted_names(chain):
            stores = self._candidates(want)
            if not stores:
                continue
            ranked = sorted(((self._score(store, want, hops, held, is_graph), store) for store, hops in stores.items()),
                            key=lambda pair: (-pair[0], pair[1].file, pair[1].line))  # fmt: skip
            score, store = ranked[0]
            keeper = Keeper(
                store.file,
                store.line,
                store.function.name,
                store,
                tuple(one for _, one in ranked),
                score,
            )
            if best is None or score > best.score + 40:
                best = keeper
            if score >= 70:
                break
        return best or self._by_what_it_keeps(chain, (held, *below))

    def call_with(self, keyword: str) -> Keeper | None:
        """A call with a keyword argument that is not False: ``backward(create_graph=True)``; one
        that ran first.
        """
        found = []
        for module in self.modules():
            for calls in module.calls.values():
                for call, function, statement, loops in calls:
                    for one in call.keywords:
                        if one.arg == keyword and not (
                            isinstance(one.value, ast.Constant) and not one.value.value
                        ):
                            ran = (
                                self._ran is not None
                                and (module.file, statement.lineno) in self._ran
                            )
                            is_backward = (
                                isinstance(call.func, ast.Attribute)
                                and call.func.attr == "backward"
                            )
                            score = 4 * ran + 2 * is_backward + min(loops, 1)
                            found.append(
                                (
                                    score,
                                    Keeper(module.file, statement.lineno, function.name, score=100),
                                )
                            )
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def _special(self, chain: Chain) -> Keeper | None:
        """Keepers that are no store: a decorator that caches, the registration of a hook."""
        for link in reversed(chain.links):
            if class_name(type(link.value)) == "_lru_cache_wrapper":
                found = self._decorator(code_of(link.value))
                if found is not None:
                    return found
            if link.how in _NAMED:
                break
        return None

    def _hook(self, chain: Chain, held: Any) -> Keeper | None:
        """Where a table of hooks grows: the registration of such a hook."""
        if not chain.links or "hook" not in chain.links[-1].name.lower():
            return None
        code = code_of(held)
        return None if code is None or not is_users(code.co_filename) else self.registration(code)

    def _decorator(self, code: types.CodeType | None) -> Keeper | None:
        source = None if code is None else self.function_of(code)
        if source is None:
            return None
        module, function = source
        node = function.node
        line = function.line
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            line = next(
                (one.lineno for one in node.decorator_list if "cache" in ast.unparse(one)),
                node.lineno,
            )
            if not node.decorator_list:  # cached = lru_cache(...)(function)
                used = [
                    statement.lineno
                    for calls in module.calls.values()
                    for call, _, statement, _ in calls
                    if any(
                        isinstance(part, ast.Name) and part.id == node.name for part in call.args
                    )
                    and "cache" in ast.unparse(call.func)
                ]
                line = used[0] if used else line
        return Keeper(module.file, line, function.name, score=200)

    def _candidates(self, want: Wanted) -> dict[Store, int]:
        """All stores under the wanted name and its aliases, with the number of hops."""
        found: dict[Store, int] = {}
        seen: set[tuple[str, str, int]] = set()
        waiting: list[tuple[Wanted, int]] = [(want, 0)]
        while waiting:
            here, hops = waiting.pop(0)
            mark = (here.name, here.file, id(here.code))
            if mark in seen:
                continue
            seen.add(mark)
            for module in self._modules_for(here):
                for store in module.stores.get(here.name, ()):
                    if self._fits(store, here):
                        found.setdefault(store, hops)
                if hops < _HOPS:
                    waiting += [(alias, hops + 1) for alias in self._aliases(module, here)]
        return found

    def _modules_for(self, want: Wanted) -> Iterator[Module]:
        if want.code is not None:
            module = read_source(want.code.co_filename)
            if module is not None:
                yield module
            return
        first = [file for file in (*want.files, want.file) if file]
        for file in dict.fromkeys((*first, *self.files())):
            module = read_source(file)
            if module is not None:
                yield module

    def _fits(self, store: Store, want: Wanted) -> bool:
        """Whether a store's receiver can be what is wanted."""
        if want.how in ("variable", "closure", "default"):
            return not store.base and self._same_variable(store, want)
        if want.how == "global":
            if store.base:
                return store.base.rpartition(".")[2] != "self" and not want.is_inside
            return store.function.binds(store.name).node is None
        if want.name == "self":
            owner = class_around(store.function)
            if (
                want.how == "namespace"
                and store.method not in _NAMESPACE
                and store.method != "setattr"
            ):
                return False
            return (
                store.name in ("self", "super()")
                and not store.base
                and bool(owner)
                and is_one(owner, want.classes)
            )
        return bool(store.base) or want.is_inside

    def _same_variable(self, store: Store, want: Wanted) -> bool:
        """Whether a plain name in a function is the variable of the wanted code."""
        if want.code is None:
            return store.function.node is not None
        bound = store.function.binds(store.name)
        source = self.function_of(want.code)
        if source is None:
            return False
        home = source[1].binds(store.name)
        return bound is home or (bound.line == home.line and bound.name == home.name)

    def _aliases(self, module: Module, want: Wanted) -> Iterator[Wanted]:
        """Other names of the same object: parameters that it is passed to, what it is assigned
        to.
        """
        for calls in module.calls.values():
            for call, function, _, _ in calls:
                places: list[tuple[int | str, ast.expr]] = [*enumerate(call.args)]
                places += [(one.arg, one.value) for one in call.keywords if one.arg]
                for place, value in places:
                    if isinstance(value, (ast.Name, ast.Attribute)) and self._is_wanted(
                        value, function, want
                    ):
                        yield from self._parameter(call, place)
        for stores in module.stores.values():
            for store in stores:
                made = store.value
                if (
                    store.how == "assign"
                    and isinstance(made, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
                    and store.name != want.name
                    and self._is_wanted(made, store.function, want)
                ):
                    if store.base:
                        owner = class_around(store.function)
                        yield Wanted(
                            store.name, "attribute", (owner,) if owner else (), (module.file,)
                        )
                    elif store.function.node is None:
                        yield Wanted(store.name, "global", file=module.file)
                    else:
                        yield Wanted(
                            store.name, "variable", code=code_for(store.function, module.file)
                        )
        for value, function in module.returns:  # of a property, or of a function that gives it out
            if function.node is not None and self._is_wanted(value, function, want):
                last = function.name.rpartition(".")[2]
                if function.owner:
                    yield Wanted(last, "attribute", (function.owner,), (module.file,))
                    yield Wanted(f"{last}()", "attribute", (function.owner,), (module.file,))
                else:
                    yield Wanted(f"{last}()", "global", file=module.file)

    def _is_wanted(self, value: ast.expr, function: Function, want: Wanted) -> bool:
        found = receiver_of(value)
        if found is None or found[0] != want.name:
            return False
        if want.how == "global":
            return not found[1] and function.binds(want.name).node is None
        if want.how in ("variable", "closure", "default"):
            if found[1]:
                return False
            source = None if want.code is None else self.function_of(want.code)
            return (
                source is not None
                and function.binds(want.name).line == source[1].binds(want.name).line
            )
        return bool(found[1])

    def _parameter(self, call: ast.Call, place: int | str) -> Iterator[Wanted]:
        called = call.func
        name = (
            called.attr
            if isinstance(called, ast.Attribute)
            else called.id
            if isinstance(called, ast.Name)
            else ""
        )
        for module in self.modules():
            for functions in module.functions.values():
                for function in functions:
                    last = function.name.rpartition(".")[2]
                    is_made = last == "__init__" and function.owner.rpartition(".")[2] == name
                    if not name or (last != name and not is_made) or function.node is None:
                        continue
                    shift = 1 if function.owner else 0
                    parameters = function.parameters
                    if isinstance(place, str):
                        parameter = place if place in parameters else ""
                    else:
                        parameter = (
                            parameters[place + shift] if place + shift < len(parameters) else ""
                        )
                    if parameter:
                        yield Wanted(parameter, "variable", code=code_for(function, module.file))

    def _score(self, store: Store, want: Wanted, hops: int, held: Any, is_graph: bool) -> int:
        score = strength(store, want)
        owner = class_around(store.function)
        if want.how == "attribute" or want.how == "class attribute":
            last = store.base.rpartition(".")[2]
            mine = is_one(owner, want.classes)
            if store.base == store.function.receiver or last == "self":
                score += 60 if mine else 0 if want.is_inside else -30
            elif last in (name.rpartition(".")[2] for name in want.classes) or (
                last == "cls" and mine
            ):
                score += 55
            else:
                score += 35
        else:
            score += 60
        if want.is_inside:
            score -= 20
        score += 6 * min(store.loops, 2)
        if store.function.name.rpartition(".")[2] in ("__init__", "reset", "setup", "clear"):
            score -= 12
        score -= 5 * hops
        if want.keys and store.keys and not hops:
            pairs = list(zip(want.keys, store.keys, strict=False))
            score += 20 if all(key in (None, wanted) for wanted, key in pairs) else -70
        if (
            self._made is not None
            and self._made.line
            and value_made_at(store, self._made.file, self._made.line)
        ):
            score += 25
        if self._ran is not None:
            score += 30 if self._has_run(store) else -10
        value = store.value
        if value is not None:
            score += likeness(self._search, value, held, is_graph)
        return score

    def has_passed_by(self, store: Store) -> bool:
        """Whether the function of a statement has run while lines were watched, and the
        statement has not.
        """
        if self._ran is None or self._has_run(store) or store.function.node is None:
            return False
        node = store.function.node
        first, last = node.lineno, node.end_lineno or node.lineno
        return any((store.file, line) in self._ran for line in range(first, last + 1))

    def _has_run(self, store: Store) -> bool:
        last = store.statement.end_lineno or store.line
        lines = range(store.line, min(last, store.line + 20) + 1)
        return self._ran is not None and any((store.file, line) in self._ran for line in lines)

    def _by_what_it_keeps(self, chain: Chain, below: Sequence[Any]) -> Keeper | None:
        """The call that hands over a function of the user's: a registration with a library, or
        with C code.
        """
        values = [*below, *(link.value for link in reversed(chain.links))]
        values += [one for value in below for _, one in attributes_of(value)]
        for value in values:
            code = code_of(value)
            if code is not None and is_users(code.co_filename):
                found = self.registration(code)
                if found is not None:
                    return found
        return None

    def registration(self, code: types.CodeType) -> Keeper | None:
        """The call that registers a function, by its name or, for a lambda, by where it stands."""
        source = self.function_of(code)
        found: list[tuple[int, Keeper]] = []
        for module in self.modules():
            for name, calls in module.calls.items():
                for call, function, statement, loops in calls:
                    if not hands_over(
                        call, code.co_name, None if source is None else source[1].line
                    ):
                        continue
                    score = loops + (
                        10 if name.startswith(("register", "add", "submit", "create")) else 0
                    )
                    if self._ran is not None and (module.file, statement.lineno) in self._ran:
                        score += 20
                    if source is not None and function.binds(code.co_name) is source[1].outer:
                        score += 5
                    keeper = Keeper(module.file, statement.lineno, function.name, score=60 + score)
                    found.append((score, keeper))
        return max(found, key=lambda pair: pair[0])[1] if found else None
