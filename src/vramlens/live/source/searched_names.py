"""The names under which a chain holds its last object: what to look for in the source."""

from __future__ import annotations

import contextvars
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vramlens.live.heap.objects import (
    class_dict,
    class_order,
    class_path,
    code_of,
    dict_items,
    is_kind,
    is_users,
)
from vramlens.live.heap.roots import Root
from vramlens.live.holder.chain import TABLES, Chain, Link
from vramlens.live.source.source_stores import Function

NAMED = ("attribute", "class attribute", "global", "variable", "closure", "default", "root")
"""Edges that the source has a name for."""
_VARIABLES = ("variable", "closure", "default")
_WITH_CODE = (types.FunctionType, staticmethod, classmethod, property)
_FARTHEST = 40
"""Links from a container back to a name: those of deeper chains are linked lists, whose statement is
near.
"""
_MOST_ATTRIBUTES = 500
"""Of a class that are asked for properties: written classes have fewer, only generated ones more."""


@dataclass(frozen=True, slots=True)
class SearchedName:
    """A name that leads to the container.

    Attributes:
        name: of the attribute or variable.
        how: as in a Link.
        classes: the classes whose methods may call it ``self.name``.
        files: the files of their methods.
        code: the function whose variable it is.
        file: the module whose global it is.
        is_inside: whether the container is somewhere inside of what has this name, in a library's
            object.
        keys: the keys between that name and the container.
        is_returned: whether it is the variable whose value a function returns.
    """

    name: str
    how: str
    classes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    code: types.CodeType | None = None
    file: str = ""
    is_inside: bool = False
    keys: tuple[str, ...] = ()
    is_returned: bool = False


def searched_names(chain: Chain) -> Iterator[SearchedName]:
    """The names under which the last object of a chain is held, the nearest first."""
    links = chain.links
    if links:
        yield from _names_in_itself(links[-1])
    is_inside = False
    keys: tuple[str, ...] = ()
    for index in range(len(links) - 1, max(len(links) - 1 - _FARTHEST, -1), -1):
        link = links[index]
        holder = links[index - 1].value if index else None
        if link.how == "key":
            keys = (link.name, *keys)
        yield from _names_apart(chain, link, holder)
        if is_inside and is_users_object(link.value):
            yield replace(_of_class("self", link.value), is_inside=True, keys=keys)
        for searched in _names_at(chain, link, holder):
            yield replace(searched, is_inside=is_inside, keys=keys)
        if link.how == "attribute" and holder is not None:
            yield from _attributes_of_key(keys, holder, is_inside=is_inside)
            is_inside = is_inside or not is_users_object(holder)


def _attributes_of_key(
    keys: Sequence[str], holder: Any, *, is_inside: bool
) -> Iterator[SearchedName]:
    """``metric.preds``, by way of ``__getattr__``."""
    key = keys[0].strip("'") if keys else ""
    if key.isidentifier():
        yield replace(_of_class(key, holder), is_inside=is_inside)


def _names_in_itself(link: Link) -> Iterator[SearchedName]:
    """What methods of the user's class call the object, if it is of one."""
    if not is_users_object(link.value):
        return
    if link.how in NAMED:
        yield _namespace(link.value)
    if is_kind(link.value, list, dict, set):
        yield _of_class("self", link.value)


def _names_apart(chain: Chain, link: Link, holder: Any) -> Iterator[SearchedName]:
    """Names that lead there whatever the keys: of a module's tables, of a dict that code runs
    in, of context variables.
    """
    if holder is not None and link.how in NAMED and link.name in TABLES:
        yield _namespace(holder)
    if link.how == "key" and type(holder) is dict and "__builtins__" in holder:  # cells ran in it
        yield SearchedName(link.name.strip("'"), "global")
    is_root = link.how == "root" and chain.root is not None and chain.root.kind == "context"
    if is_root or link.how == "context variable":
        yield from _context_variables(link.name)


def _names_at(chain: Chain, link: Link, holder: Any) -> Iterator[SearchedName]:
    if link.how == "attribute" and holder is not None:
        yield _of_class(link.name, holder)
    elif link.how == "class attribute" and holder is not None:
        yield SearchedName(link.name, link.how, _class_names(holder))
    elif link.how in _VARIABLES:
        root = chain.root if link is chain.links[0] else None
        code = _code_of(holder) if root is None else root.code
        yield SearchedName(link.name, link.how, code=code)
    elif link.how == "global" and chain.root is not None:
        yield SearchedName(link.name, "global", file=_file_of(chain.root))


def _file_of(root: Root) -> str:
    file = dict(dict_items(root.value)).get("__file__")
    return file if type(file) is str else ""


def _code_of(holder: Any) -> types.CodeType | None:
    if type(holder) is types.FrameType:
        return holder.f_code
    return code_of(holder)


def _class_names(cls: type) -> tuple[str, ...]:
    return tuple(class_path(base) for base in class_order(cls) if base is not object)


def _of_class(name: str, owner: Any) -> SearchedName:
    """An attribute of an object, in the methods of its classes."""
    cls = owner if is_kind(owner, type) else type(owner)
    return SearchedName(name, "attribute", _class_names(cls), _files_of(cls))


def _namespace(owner: Any) -> SearchedName:
    """The attributes of an object themselves."""
    return replace(_of_class("self", owner), how="namespace")


def _files_of(cls: type) -> tuple[str, ...]:
    """The user's files in which methods of a class are."""
    files: dict[str, None] = {}
    for base in class_order(cls):
        for attribute in list(class_dict(base).values())[:_MOST_ATTRIBUTES]:
            code = code_of(attribute) if type(attribute) in _WITH_CODE else None
            if code is not None and is_users(code.co_filename):
                files[code.co_filename] = None
    return tuple(files)


def is_users_object(value: Any) -> bool:
    """Whether an object is of a class that the user wrote."""
    return bool(_files_of(type(value)))


def _context_variables(name: str) -> Iterator[SearchedName]:
    """The globals under which the user's modules have a context variable of this name; its own
    name where the modules are gone, as at the program's end.
    """
    keys: list[tuple[str, str]] = []
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None) if type(module) is types.ModuleType else None
        file = names.get("__file__") if type(names) is dict else None
        if type(names) is not dict or type(file) is not str or not is_users(file):
            continue
        for key, variable in list(names.items()):
            if type(variable) is contextvars.ContextVar and variable.name == name:
                keys.append((str(key), file))
    for key, file in keys or [(name, "")]:
        yield SearchedName(key, "global", file=file)


class _SourceCode:
    """Stands for the code object of a function that is known by its source alone."""

    def __init__(self, file: str, line: int, name: str) -> None:
        self.co_filename, self.co_firstlineno, self.co_name = file, line, name


def code_for(function: Function, file: str) -> Any:
    """What stands for the code of a function that is known by its source."""
    name = "<module>" if function.node is None else function.name.rpartition(".")[2]
    return _SourceCode(file, function.line, name)
