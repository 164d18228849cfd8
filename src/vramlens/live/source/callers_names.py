"""What the callers of a function call its parameter: ``history`` of ``train(model, history)``.

A search names the variables of the innermost running function first. What it was given is filled
and emptied by its callers, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from vramlens.live.source.searched_names import SearchedName, code_for
from vramlens.live.source.source_stores import CallSite, Function, Module
from vramlens.live.source.statement_scores import class_around
from vramlens.live.source.users_source import UsersSource


def names_of_callers(source: UsersSource, searched: SearchedName) -> Iterator[SearchedName]:
    """Yields the names of what is passed for a variable that is a parameter; of a method's own
    instance none.
    """
    definition = None if searched.code is None else source.function_of(searched.code)
    if searched.how != "variable" or definition is None:
        return
    function = definition[1]
    if searched.name not in function.parameters or searched.name == function.receiver:
        return
    for module in source.modules():
        for site in module.calls.get(_called_name(function), ()):
            name = _name_of(_passed(site, function, searched.name), site, module)
            if name is not None:
                yield name


def _called_name(function: Function) -> str:
    last = function.name.rpartition(".")[2]
    return function.owner.rpartition(".")[2] if last == "__init__" else last


def _passed(site: CallSite, function: Function, parameter: str) -> ast.expr | None:
    """What a call passes for a parameter."""
    for keyword in site.call.keywords:
        if keyword.arg == parameter:
            return keyword.value
    place = function.parameters.index(parameter) - bool(function.receiver)
    arguments = site.call.args
    return arguments[place] if 0 <= place < len(arguments) else None


def _name_of(passed: ast.expr | None, site: CallSite, module: Module) -> SearchedName | None:
    match passed:
        case ast.Name(id=name) if site.function.binds(name).node is None:
            return SearchedName(name, "global", file=module.file)
        case ast.Name(id=name):
            code = code_for(site.function, module.file)
            return SearchedName(name, "variable", code=code)
        case ast.Attribute(attr=name):
            owner = class_around(site.function)
            return SearchedName(name, "attribute", (owner,) if owner else (), (module.file,))
    return None
