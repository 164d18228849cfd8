"""The names under which a chain holds its last object: what to look for in the source."""

from __future__ import annotations

import contextvars
import sys
import types
from collections.abc import Iterator
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
from vramlens.live.holder.chain import Chain, Link
from vramlens.live.source.source import Function

_NAMED = ("attribute", "class attribute", "global", "variable", "closure", "default", "root")


_FARTHEST = 40  # links: what is further away has nothing to do with the container


@dataclass(frozen=True, slots=True)
class Wanted:
    """Names that lead to the container.

    Attributes:
        name: of the attribute or variable.
        how: as in a Link.
        classes: the classes whose methods may call it ``self.name``.
        code: the function whose variable it is.
        file: the module whose global it is.
        is_inside: whether the container is somewhere inside of what has this name, in a library's
            object.
        keys: the keys between that name and the container.
    """

    name: str
    how: str
    classes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    code: types.CodeType | None = None
    file: str = ""
    is_inside: bool = False
    keys: tuple[str, ...] = ()


def wanted_names(chain: Chain) -> Iterator[Wanted]:
    """The names under which the last object of a chain is held, the nearest first."""
    links = chain.links
    is_inside = False
    keys: list[str] = []
    for index in range(len(links) - 1, max(len(links) - 1 - _FARTHEST, -1), -1):
        link = links[index]
        if link.how not in _NAMED:
            if link.how == "key":
                keys.insert(0, link.name)
            if (
                index == len(links) - 1
                and is_kind(link.value, list, dict, set)
                and is_users_object(link.value)
            ):
                yield _of_class("self", link.value, is_inside=False)
            continue
        holder = links[index - 1].value if index else None
        if index == len(links) - 1 and is_users_object(link.value):
            yield replace(_of_class("self", link.value, is_inside=False), how="namespace")
        if holder is not None and link.name in ("_buffers", "_parameters", "_modules"):
            yield replace(_of_class("self", holder, is_inside=False), how="namespace")
        if (
            index == len(links) - 1
            and is_users_object(link.value)
            and is_kind(link.value, list, dict, set)
        ):
            yield _of_class("self", link.value, is_inside=False)  # a list of the user's own making
        if link.how == "attribute" and holder is not None:
            yield replace(_of_class(link.name, holder, is_inside=is_inside), keys=tuple(keys))
            if keys and keys[0].strip("'").isidentifier():  # metric.preds, by way of __getattr__
                yield _of_class(keys[0].strip("'"), holder, is_inside=is_inside)
            if not is_users_object(holder):
                is_inside = True
        elif link.how == "class attribute" and holder is not None:
            names = tuple(class_path(cls) for cls in class_order(holder) if cls is not object)
            yield Wanted(link.name, link.how, names, is_inside=is_inside, keys=tuple(keys))
        elif link.how == "root" and chain.root is not None and chain.root.kind == "context":
            yield from _context_variables(chain.root.name)
        elif link.how in ("variable", "closure", "default"):
            code = (
                chain.root.code
                if index == 0 and chain.root is not None
                else _code_of_holder(link, holder)
            )
            yield Wanted(link.name, link.how, code=code, is_inside=is_inside, keys=tuple(keys))
        elif link.how == "global" and chain.root is not None:
            file = dict(dict_items(chain.root.value)).get("__file__")
            where = file if type(file) is str else ""
            yield Wanted(link.name, "global", file=where, is_inside=is_inside, keys=tuple(keys))


def _code_of_holder(link: Link, holder: Any) -> types.CodeType | None:
    if type(holder) is types.FrameType:
        return holder.f_code
    return code_of(holder)


def _of_class(name: str, owner: Any, *, is_inside: bool) -> Wanted:
    cls = owner if is_kind(owner, type) else type(owner)
    names = tuple(class_path(base) for base in class_order(cls) if base is not object)
    return Wanted(name, "attribute", names, _files_of(cls), is_inside=is_inside)


def _files_of(cls: type) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for base in class_order(cls):
        for value in list(class_dict(base).values())[:500]:
            code = (
                code_of(value)
                if type(value) in (types.FunctionType, staticmethod, classmethod, property)
                else None
            )
            if code is not None and is_users(code.co_filename):
                found[code.co_filename] = None
    return tuple(found)


def is_users_object(value: Any) -> bool:
    """Whether an object is of a class that the user wrote."""
    return bool(_files_of(type(value)))


def _context_variables(name: str) -> Iterator[Wanted]:
    """The globals under which the user's modules have a context variable of this name."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None) if type(module) is types.ModuleType else None
        if type(names) is not dict:
            continue
        file = names.get("__file__")
        if type(file) is str and is_users(file):
            for key, value in list(names.items()):
                if type(value) is contextvars.ContextVar and value.name == name:
                    yield Wanted(str(key), "global", file=file)


class _SourceCode:
    """Stands for the code object of a function that is known by its source alone."""

    def __init__(self, file: str, line: int, name: str) -> None:
        self.co_filename, self.co_firstlineno, self.co_name = file, line, name


def code_for(function: Function, file: str) -> Any:
    """What stands for the code of a function that is known by its source."""
    name = "<module>" if function.node is None else function.name.rpartition(".")[2]
    return _SourceCode(file, function.line, name)
