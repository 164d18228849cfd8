"""Objects as the interpreter keeps them: types by ``type()``, attributes from the real dict and
slots.

No ``__getattr__``, ``__class__``, ``__eq__``, ``__hash__`` or property of the program runs here,
and nothing that a metaclass defines.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from vramlens.ground.program_errors import own_errors

# Attributes of a class as C keeps them: a metaclass may define properties of these names.
_NAME: Any = type.__dict__["__name__"]
_QUALNAME: Any = type.__dict__["__qualname__"]
_MODULE: Any = type.__dict__["__module__"]
_MRO: Any = type.__dict__["__mro__"]
_DICT: Any = type.__dict__["__dict__"]
DESCRIPTORS: tuple[type, ...] = (types.GetSetDescriptorType, types.MemberDescriptorType)
"""The types of descriptors that are C's: reading through them runs nobody's code."""


def class_name(cls: type) -> str:
    """The name of a class, whatever its metaclass says."""
    return str(_NAME.__get__(cls))


def class_path(cls: type) -> str:
    """The qualified name of a class without ``<locals>``: ``Trainer``, ``Outer.Inner``."""
    return str(_QUALNAME.__get__(cls)).rpartition("<locals>.")[2]


def class_module(cls: type) -> str:
    """The module that a class says it is from; empty where that is not a text."""
    with suppress(AttributeError):
        module = _MODULE.__get__(cls)
        if type(module) is str:
            return module
    return ""


def class_order(cls: type) -> tuple[type, ...]:
    """A class and its bases, in the order of resolution."""
    order: tuple[type, ...] = _MRO.__get__(cls)
    return order


def class_dict(cls: type) -> Mapping[str, Any]:
    """A class's own attributes."""
    attributes: Mapping[str, Any] = _DICT.__get__(cls)
    return attributes


def is_kind(instance: object, *kinds: type) -> bool:
    """True where the real type is one of these or derived from one: ``isinstance`` without
    ``__class__``.
    """
    order = class_order(type(instance))
    return any(base is kind for base in order for kind in kinds)


def namespace_of(owner: object) -> dict[Any, Any] | None:
    """The dict in which an instance keeps its attributes, or None."""
    for base in class_order(type(owner)):
        descriptor: Any = class_dict(base).get("__dict__")
        if type(descriptor) in DESCRIPTORS:
            with own_errors():
                namespace = descriptor.__get__(owner)
                if type(namespace) is dict:
                    return namespace
            return None
    return None


def slots_of(owner: object) -> Iterator[tuple[str, Any]]:
    """Names and values of an instance's slots."""
    for name, slot in instance_layout(type(owner)).slots:
        with own_errors():  # a slot without a value
            yield name, slot.__get__(owner)


@dataclass(frozen=True, slots=True)
class InstanceLayout:
    """Where instances of a class keep attributes.

    Attributes:
        namespace: C's getter of their dict; None where they have none.
        slots: name and getter of each slot.
    """

    namespace: Any
    slots: tuple[tuple[str, Any], ...]


def instance_layout(cls: type) -> InstanceLayout:
    """The layout of a class's instances."""
    namespace = None
    slots = []
    for base in class_order(cls):
        if base is object:
            continue
        for name, member in list(class_dict(base).items()):
            if type(member) is types.MemberDescriptorType and not str(name).startswith("__"):
                slots.append((name, member))
            elif namespace is None and name == "__dict__" and type(member) in DESCRIPTORS:
                namespace = member
    return InstanceLayout(namespace, tuple(slots))
