"""The calls of functions that take things away: from where, and with which key."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import chain

from vramlens.live.holder.keeper import Statements
from vramlens.live.source.expressions import constant_key
from vramlens.live.source.source_stores import CallSite, Function, Store


def calls_of(store: Store, statements: Statements) -> Iterator[tuple[str, CallSite]]:
    """Yields the calls of the function that a statement is in, from other functions, with their
    files.
    """
    owner = store.function.owner.rpartition(".")[2]
    for module in statements.modules():
        if module.file == store.file or module.mentions(owner):
            for site in module.calls.get(store.function.name.rpartition(".")[2], ()):
                if site.function is not store.function:
                    yield module.file, site


def argument_of(site: CallSite, function: Function, parameter: str) -> ast.expr | None:
    """What a call hands over for a parameter of a function; None where it leaves it out."""
    place = function.parameters.index(parameter) - bool(function.receiver)
    by_name = (keyword.value for keyword in site.call.keywords if keyword.arg == parameter)
    by_place = site.call.args[place : place + 1] if place >= 0 else []
    return next(chain(by_name, by_place), None)


def is_of_another_entry(removal: Store, keys: Sequence[str], statements: Statements) -> bool:
    """Whether a removal takes from another entry of a table than the one under some keys:
    ``self.pools["val"].clear()``, also by a parameter for which no call hands over that key.
    """
    pairs = zip(keys, removal.key_path, strict=False)
    return any(_is_never(key, asked, removal, statements) for key, asked in pairs)


def _is_never(key: str, asked: ast.expr, removal: Store, statements: Statements) -> bool:
    """Whether an expression has never the value of a key; False where nobody knows."""
    handed_over: list[ast.expr | None] = [asked]
    if isinstance(asked, ast.Name) and asked.id in removal.function.parameters:
        sites = [site for _, site in calls_of(removal, statements)]
        if not sites:
            return False
        handed_over = _handed_over(sites, removal.function, asked.id)
    constants = set(map(constant_key, handed_over))
    return None not in constants and key not in constants


def _handed_over(
    sites: Sequence[CallSite], function: Function, parameter: str
) -> list[ast.expr | None]:
    """What calls hand over for a parameter; a call without one that is required is of another
    function of that name, as a list's own ``clear()``.
    """
    arguments = [argument_of(site, function, parameter) for site in sites]
    if parameter in _with_defaults(function):
        return arguments
    return [argument for argument in arguments if argument is not None]


def _with_defaults(function: Function) -> set[str]:
    if function.node is None:
        return set()
    parameters = function.node.args
    by_place = [*parameters.posonlyargs, *parameters.args]
    last = by_place[len(by_place) - len(parameters.defaults) :]
    by_name = zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
    return {each.arg for each in last} | {each.arg for each, value in by_name if value is not None}
