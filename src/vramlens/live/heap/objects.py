"""Objects as the interpreter keeps them: read by type, never through anything that a class can
redefine.

No ``__getattr__``, ``__len__``, ``__eq__``, ``__hash__``, ``__class__`` or ``__repr__`` of the
program runs here: classes come from ``type()``, attributes from the instance's real dict and slots,
elements from the built-in containers' methods.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_NAME: Any = type.__dict__["__name__"]
_QUALNAME: Any = type.__dict__["__qualname__"]
_MODULE: Any = type.__dict__["__module__"]
_MRO: Any = type.__dict__["__mro__"]
_DICT: Any = type.__dict__["__dict__"]
_DESCRIPTORS: tuple[type, ...] = (types.GetSetDescriptorType, types.MemberDescriptorType)
_OPTIMIZED = 0x1  # code whose variables are fast locals: functions, not modules and classes
_REFERENCES_OF_A_SNAPSHOT = 3  # the frame's, ours, and getrefcount's own
_LONGEST_KEY = 60
QUEUES = ("queue", "asyncio.queues")
"""Modules whose classes are queues."""
_PACKAGE = str(Path(os.path.abspath(__file__)).parents[2]) + os.sep


def class_name(cls: type) -> str:
    """The name of a class, whatever its metaclass says."""
    return str(_NAME.__get__(cls))


def class_path(cls: type) -> str:
    """The qualified name of a class without ``<locals>``: ``Trainer``, ``Outer.Inner``."""
    return str(_QUALNAME.__get__(cls)).rpartition("<locals>.")[2]


def class_module(cls: type) -> str:
    """The module that a class says it is from; empty where that is no text."""
    with suppress(AttributeError):
        module = _MODULE.__get__(cls)
        if type(module) is str:
            return module
    return ""


def class_order(cls: type) -> tuple[type, ...]:
    """A class and its bases, in the order of resolution."""
    classes: tuple[type, ...] = _MRO.__get__(cls)
    return classes


def class_dict(cls: type) -> Mapping[str, Any]:
    """A class's own attributes."""
    attributes: Mapping[str, Any] = _DICT.__get__(cls)
    return attributes


def is_kind(value: object, *kinds: type) -> bool:
    """Whether a value's real type is one of these or derived from one: ``isinstance`` without
    ``__class__``.
    """
    order = class_order(type(value))
    return any(base is kind for base in order for kind in kinds)


def is_own_file(file: str) -> bool:
    """Whether a file belongs to this package."""
    return file.startswith(_PACKAGE)


@functools.lru_cache(maxsize=8192)
def is_users(file: str) -> bool:
    """Whether a file is the user's own code."""
    from vramlens.trace.stacks import is_user_file

    return is_user_file(file) and not is_own_file(file)


def namespace_of(owner: object) -> dict[Any, Any] | None:
    """The dict in which an instance keeps its attributes, or None."""
    for base in class_order(type(owner)):
        descriptor: Any = class_dict(base).get("__dict__")
        if type(descriptor) in _DESCRIPTORS:
            with suppress(Exception):
                namespace = descriptor.__get__(owner)
                if type(namespace) is dict:
                    return namespace
            return None
    return None


def slots_of(owner: object) -> Iterator[tuple[str, Any]]:
    """Names and values of an instance's slots."""
    for base in class_order(type(owner)):
        if base is object:
            continue
        for name, descriptor in list(class_dict(base).items()):
            if type(descriptor) is types.MemberDescriptorType and not name.startswith("__"):
                with suppress(Exception):
                    yield name, descriptor.__get__(owner)


def attributes_of(owner: object) -> list[tuple[str, Any]]:
    """Names and values of an instance's own attributes: the real dict and the slots, never a
    property.
    """
    attributes = [
        (name, value) for name, value in dict_items(namespace_of(owner)) if type(name) is str
    ]
    return [*attributes, *slots_of(owner)]


def dict_items(value: object) -> list[tuple[Any, Any]]:
    """Keys and values of a dict or of what is derived from it; empty for all else."""
    kind = type(value)
    if kind is dict or kind is defaultdict:
        return list(dict.items(value))  # type: ignore[arg-type]
    if kind is OrderedDict:
        return list(OrderedDict.items(value))  # type: ignore[arg-type]
    if kind is types.MappingProxyType:
        return []
    if is_kind(value, OrderedDict, dict):
        return list(dict.items(value))  # type: ignore[arg-type]
    return []


def elements_of(value: object) -> Iterator[Any] | None:
    """The elements of a built-in sequence or set, or of what is derived from one; None for all
    else.
    """
    kind: Any
    for kind in (list, tuple, deque, set, frozenset):
        if is_kind(value, kind):
            elements: Iterator[Any] = iter(kind.__iter__(value))
            return elements
    return None


def length_of(value: object) -> int | None:
    """How many elements a built-in container has; None for all else."""
    kind: Any
    for kind in (list, tuple, dict, deque, set, frozenset):
        if is_kind(value, kind):
            return int(kind.__len__(value))
    return None


def key_text(key: object) -> str:
    """A dict's key as one would write it; keys that could run code when printed are named by
    their type.
    """
    kind = type(key)
    if kind in (str, int, bool, float, type(None), bytes):
        return repr(key)[:_LONGEST_KEY]
    if kind is tuple:
        return f"({', '.join(key_text(part) for part in key[:4])})"[:_LONGEST_KEY]  # type: ignore[index]
    return f"<{class_name(kind)}>"


def frame_variables(frame: types.FrameType) -> dict[str, Any]:
    """The local variables of a frame, as a dict of our own.

    Up to Python 3.12 reading ``f_locals`` leaves a copy of them in the frame, which would keep
    alive what the function deletes later; that copy is emptied again, unless somebody else has it
    (``locals()``) or a debugger needs it.
    """
    snapshot: Any = frame.f_locals
    if not frame.f_code.co_flags & _OPTIMIZED:
        return {name: value for name, value in dict_items(snapshot) if type(name) is str}
    variables = dict(snapshot)
    if (
        sys.version_info < (3, 13)
        and type(snapshot) is dict
        and frame.f_trace is None
        and sys.gettrace() is None
        and sys.getrefcount(snapshot) <= _REFERENCES_OF_A_SNAPSHOT
    ):
        snapshot.clear()
    return variables


def code_of(function: object) -> types.CodeType | None:
    """The code of a function, method, partial or wrapper; None where there is none."""
    for _ in range(8):
        kind = type(function)
        if kind is types.FunctionType:
            return function.__code__  # type: ignore[attr-defined, no-any-return]
        if kind is types.MethodType:
            function = function.__func__  # type: ignore[attr-defined]
        elif kind is functools.partial:
            function = function.func  # type: ignore[attr-defined]
        elif kind in (staticmethod, classmethod):
            function = function.__func__  # type: ignore[attr-defined]
        elif kind is property:
            function = function.fget  # type: ignore[attr-defined]
        elif kind in (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
            return next(
                (
                    getattr(function, name)
                    for name in ("gi_code", "cr_code", "ag_code")
                    if hasattr(kind, name)
                ),
                None,
            )
        else:
            wrapped = dict(dict_items(namespace_of(function))).get("__wrapped__")
            if wrapped is None:
                return None
            function = wrapped
    return None
