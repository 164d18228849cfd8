"""Calls that hand over a function: registrations with a library, or with C code."""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Iterator
from itertools import chain

from vramlens.ground.source_code import last_line_of, last_name
from vramlens.live.source.expressions import (
    arguments_of,
    hands_over,
    is_made_by,
    names_read,
    text_of,
)
from vramlens.live.source.source_stores import CallSite, Module
from vramlens.live.source.source_tree import tree_of
from vramlens.live.source.users_source import UsersSource

_REGISTERING = ("register", "add", "submit", "create")
_HOOK_WORD = re.compile(r"(?:^|[\W_])hooks?(?:$|[\W_])", re.IGNORECASE)


def is_hook_name(name: str) -> bool:
    """Whether a name has the word: ``_forward_hooks``, but not ``_datahook_selector``."""
    return _HOOK_WORD.search(name) is not None


def is_registered_hook(source: UsersSource, function_name: str, file: str, line: int) -> bool:
    """Whether a function is registered as a hook anywhere in the user's source."""
    for module in source.modules():
        end_line = line if module.file == file else 0
        for argument in _hook_arguments(module):
            if _names_function(argument, function_name, end_line):
                return True
    return False


def hook_registrations(
    source: UsersSource, table: str, cls: str
) -> Iterator[tuple[int, Module, CallSite]]:
    """Yields the calls that put objects of the user's class with ``__call__`` into a table of hooks of
    PyTorch's (``_forward_hooks``: ``register_forward_hook``), each with its points.
    """
    table_words = _words_of_hook(table)
    for module in source.modules():
        for name, sites in module.calls.items():
            if not name.startswith("register_") or not is_hook_name(name):
                continue
            if _words_of_hook(name) - {"full"} not in (table_words, set()):
                continue
            for site in sites:
                if any(_is_made_of(module, site, part, cls) for part in site.call.args):
                    points = site.loops + 20 * source.has_run(module.file, site.statement.lineno)
                    yield points, module, site


def _words_of_hook(name: str) -> set[str]:
    return set(name.split("_")) - {"", "register", "hook", "hooks"}


def _is_made_of(module: Module, site: CallSite, argument: ast.expr, cls: str) -> bool:
    """Whether an argument makes an object of a class, or is a variable that has one."""
    if isinstance(argument, ast.Name):
        stores = module.stores.get(argument.id, ())
        values = [store.value for store in stores if store.function is site.function]
    else:
        values = [argument]
    calls = (value for value in values if isinstance(value, ast.Call))
    return any(last_name(call.func) == cls for call in calls)


def _hook_arguments(module: Module) -> Iterator[ast.expr]:
    """Yields what is given to functions that register hooks, by their name."""
    for name, sites in module.calls.items():
        if "hook" in name.lower():
            for site in sites:
                yield from arguments_of(site.call)


def _names_function(argument: ast.expr, function_name: str, line: int) -> bool:
    """Whether an argument is a function, calls it, or makes it.

    Args:
        function_name: qualified.
        line: in it; 0 where the argument is in another file.
    """
    last = function_name.rpartition(".")[2]
    if isinstance(argument, ast.Name | ast.Attribute):
        return last_name(argument) == last
    if isinstance(argument, ast.Lambda):
        is_itself = last == "<lambda>" and argument.lineno <= line <= last_line_of(argument)
        return is_itself or last in names_read(argument)
    if isinstance(argument, ast.Call):  # a maker of hooks, a partial
        outer = set(function_name.split(".")) - {"<lambda>", ""}
        return not outer.isdisjoint(names_read(argument))
    return False


def registrations(
    source: UsersSource, code: types.CodeType
) -> Iterator[tuple[int, Module, CallSite]]:
    """Yields the calls that are given a function, by its name, by the call of the function that makes
    it or, for a lambda, by where it stands; each with its points.
    """
    definition = source.function_of(code)
    line = None if definition is None else definition[1].line
    maker = _maker_of(source, code)
    for module in source.modules():
        for name, sites in module.calls.items():
            for site in sites:
                is_made = bool(maker) and is_made_by(site.call, maker)
                if not is_made and not hands_over(site.call, code.co_name, line):
                    continue
                points = site.loops + 10 * name.startswith(_REGISTERING)
                if source.has_run(module.file, site.statement.lineno):
                    points += 20
                if definition is not None:
                    is_its_name = site.function.binds(code.co_name) is definition[1].outer
                    points += 5 * is_its_name
                yield points, module, site


def _maker_of(source: UsersSource, code: types.CodeType) -> str:
    """The function that makes a function inside of it, and returns it; empty of others."""
    definition = source.function_of(code)
    outer = None if definition is None else definition[1].outer
    if definition is None or outer is None or outer.node is None:
        return ""
    module, function = definition
    returned = [value for value, around in module.returns if around is outer]
    is_returned = any(
        value is function.node or (isinstance(value, ast.Name) and value.id == code.co_name)
        for value in returned
    )
    return outer.name.rpartition(".")[2] if is_returned else ""


def caching_line(source: UsersSource, code: types.CodeType) -> tuple[str, int, str] | None:
    """Where a function is made to cache its results: file, line and name; None without source."""
    definition = source.function_of(code)
    if definition is None:
        return None
    module, function = definition
    node = function.node
    line = function.line
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        decorators = [part.lineno for part in node.decorator_list if "cache" in text_of(part)]
        calls = _caching_calls(module, node.name)
        line = next(chain(decorators, calls), node.lineno)
    return module.file, line, function.name


def _caching_calls(module: Module, function: str) -> Iterator[int]:
    """Yields the lines of ``cached = lru_cache(...)(function)``, also of a method."""
    tree = tree_of(module.file)
    calls = [node for node in ast.walk(tree or ast.Module([], [])) if isinstance(node, ast.Call)]
    for call in calls:
        last_names = (text_of(part).rpartition(".")[2] for part in call.args)
        if function in last_names and "cache" in text_of(call.func):
            yield call.lineno


def calls_with(source: UsersSource, keyword: str) -> Iterator[tuple[int, Module, CallSite]]:
    """Yields the calls with a keyword argument that is not False, each with its points."""
    for module in source.modules():
        for site in module.all_calls():
            for argument in site.call.keywords:
                if argument.arg != keyword or _is_false(argument.value):
                    continue
                has_run = source.has_run(module.file, site.statement.lineno)
                called = site.call.func
                is_backward = isinstance(called, ast.Attribute) and called.attr == "backward"
                yield 4 * has_run + 2 * is_backward + min(site.loops, 1), module, site


def _is_false(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Constant) and not expression.value
