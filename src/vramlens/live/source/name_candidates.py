"""Statements that store under a name, or under another name of the same object.

Other names are parameters that it is passed to, variables that it is assigned to, properties and
functions that give it out; of a parameter, what the callers of its function pass.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vramlens.ground.source_code import last_name
from vramlens.live.heap.objects import is_users
from vramlens.live.source.callers_names import names_of_callers
from vramlens.live.source.expressions import receiver_of
from vramlens.live.source.searched_names import SearchedName, code_for
from vramlens.live.source.source_stores import Function, Module, Store, read_source
from vramlens.live.source.statement_scores import NAMING_METHODS, class_around, is_among
from vramlens.live.source.users_source import UsersSource

_HOPS = 3
"""Other names that lead to a name (``log = self.log``, ``append = log.append``): a fourth leads to what
only shares a word.
"""
_VARIABLES = ("variable", "closure", "default")
_ALIAS_MAKERS = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


def candidate_stores(source: UsersSource, searched: SearchedName) -> dict[Store, int]:
    """All stores under a name and its aliases, each with the number of hops to it."""
    candidates: dict[Store, int] = {}
    visited: set[tuple[str, str, int]] = set()
    waiting: list[tuple[SearchedName, int]] = [(searched, 0)]
    for alias, hops in waiting:
        mark = (alias.name, alias.file, id(alias.code))
        if mark in visited:
            continue
        visited.add(mark)
        if not hops:
            waiting += [(other, 1) for other in names_of_callers(source, alias)]
        for module in _modules_for(source, alias):
            for store in module.stores.get(alias.name, ()):
                if not _fits(source, store, alias, hops):
                    continue
                candidates.setdefault(store, hops)
                if hops < _HOPS:
                    waiting += [(other, hops + 1) for other in _returned_variables(source, store)]
            if hops < _HOPS:
                waiting += [(other, hops + 1) for other in _aliases(source, module, alias)]
    return candidates


def _modules_for(source: UsersSource, searched: SearchedName) -> Iterator[Module]:
    if searched.code is not None:
        files = [searched.code.co_filename]
    else:
        home = [searched.file] if searched.file and is_users(searched.file) else []
        nearest = [*searched.files, *home]
        files = [*nearest, *source.files()]
    for file in dict.fromkeys(files):
        module = read_source(file)
        if module is not None:
            yield module


def _fits(source: UsersSource, store: Store, searched: SearchedName, hops: int) -> bool:
    """Whether a store's receiver can be what is searched for.

    A variable that is only another name, and is given another object (``node = node.parent``), is
    stored to without any change of what it stood for.
    """
    if searched.how in _VARIABLES:
        is_another_name = hops > 0 and not searched.is_returned
        if store.base or (is_another_name and store.how == "assign"):
            return False
        return _same_variable(source, store, searched)
    if searched.how == "global":
        if store.base:
            return store.base.rpartition(".")[2] != "self" and not searched.is_inside
        return store.function.binds(store.name).node is None
    if searched.name == "self":
        return _stores_into_self(store, searched)
    return bool(store.base) or searched.is_inside


def _stores_into_self(store: Store, searched: SearchedName) -> bool:
    if searched.how == "namespace" and store.method not in NAMING_METHODS:
        return False
    is_self = store.name in ("self", "super()") and not store.base
    owner = class_around(store.function)
    return is_self and bool(owner) and is_among(owner, searched.classes)


def _same_variable(source: UsersSource, store: Store, searched: SearchedName) -> bool:
    """Whether a plain name in a function is the variable of the searched code."""
    if searched.code is None:
        return store.function.node is not None
    bound = store.function.binds(store.name)
    definition = source.function_of(searched.code)
    if definition is None:
        return False
    home = definition[1].binds(store.name)
    return bound is home or (bound.line == home.line and bound.name == home.name)


def _aliases(source: UsersSource, module: Module, searched: SearchedName) -> Iterator[SearchedName]:
    """Other names of the same object in a module."""
    yield from _parameters_given(source, module, searched)
    for stores in module.stores.values():
        for store in stores:
            if store.how == "assign" and _assigns(source, store, searched):
                yield _assigned_name(store, module)
    for expression, function in module.returns:
        if function.node is not None and _is_searched(source, expression, function, searched):
            yield from _given_out_names(function, module)


def _returned_variables(source: UsersSource, store: Store) -> Iterator[SearchedName]:
    """What the function calls it that made it: ``captured`` of ``maps = capture(model)``, where
    ``capture`` ends with ``return captured``; of several that it returns, the one of the same name.
    """
    if store.how != "assign" or not isinstance(store.value, ast.Call):
        return
    called = last_name(store.value.func)
    for module in source.modules():
        same_names = (entry for entry in module.returned_together if entry[0].id == store.name)
        for expression, function in (*module.returns, *same_names):
            if not isinstance(expression, ast.Name) or not _is_called_as(function, called):
                continue
            if function.binds(expression.id).node is not None:
                code = code_for(function, module.file)
                yield SearchedName(expression.id, "variable", code=code, is_returned=True)


def _parameters_given(
    source: UsersSource, module: Module, searched: SearchedName
) -> Iterator[SearchedName]:
    for site in module.all_calls():
        arguments: list[tuple[int | str, ast.expr]] = [*enumerate(site.call.args)]
        arguments += [(part.arg, part.value) for part in site.call.keywords if part.arg]
        for place, argument in arguments:
            if not isinstance(argument, ast.Name | ast.Attribute):
                continue
            if _is_searched(source, argument, site.function, searched):
                yield from _parameters(source, last_name(site.call.func), place)


def _assigns(source: UsersSource, store: Store, searched: SearchedName) -> bool:
    value = _table_of_loop(store) if store.value is None and searched.keys else store.value
    if store.name == searched.name or not isinstance(value, _ALIAS_MAKERS):
        return False
    return _is_searched(source, value, store.function, searched)


def _table_of_loop(store: Store) -> ast.expr | None:
    """``self.queues`` of ``for queue in self.queues.values()``, whose entries have that name."""
    match store.statement:
        case ast.For(iter=ast.Call(func=ast.Attribute(value=table, attr="values" | "items"))):
            return table
        case ast.For(iter=table):
            return table
    return None


def _assigned_name(store: Store, module: Module) -> SearchedName:
    if store.base:
        owner = class_around(store.function)
        return SearchedName(store.name, "attribute", (owner,) if owner else (), (module.file,))
    if store.function.node is None:
        return SearchedName(store.name, "global", file=module.file)
    return SearchedName(store.name, "variable", code=code_for(store.function, module.file))


def _given_out_names(function: Function, module: Module) -> Iterator[SearchedName]:
    last = function.name.rpartition(".")[2]
    if not function.owner:
        yield SearchedName(f"{last}()", "global", file=module.file)
        return
    yield SearchedName(last, "attribute", (function.owner,), (module.file,))
    yield SearchedName(f"{last}()", "attribute", (function.owner,), (module.file,))


def _is_searched(
    source: UsersSource, expression: ast.expr, function: Function, searched: SearchedName
) -> bool:
    receiver = receiver_of(expression)
    if receiver is None or receiver[0] != searched.name:
        return False
    base = receiver[1]
    if searched.how == "global":
        return not base and function.binds(searched.name).node is None
    if searched.how not in _VARIABLES:
        return bool(base)
    definition = None if base or searched.code is None else source.function_of(searched.code)
    if definition is None:
        return False
    return function.binds(searched.name).line == definition[1].binds(searched.name).line


def _parameters(source: UsersSource, called: str, place: int | str) -> Iterator[SearchedName]:
    """The parameters at a place, or of a name, of all functions that are called so."""
    if not called:
        return
    for module in source.modules():
        for function in module.all_functions():
            if function.node is None or not _is_called_as(function, called):
                continue
            parameter = _parameter_at(function, place)
            if parameter:
                yield SearchedName(parameter, "variable", code=code_for(function, module.file))


def _is_called_as(function: Function, called: str) -> bool:
    last = function.name.rpartition(".")[2]
    is_constructor = last == "__init__" and function.owner.rpartition(".")[2] == called
    return last == called or is_constructor


def _parameter_at(function: Function, place: int | str) -> str:
    parameters = function.parameters
    if isinstance(place, str):
        return place if place in parameters else ""
    index = place + (1 if function.owner else 0)
    return parameters[index] if index < len(parameters) else ""
