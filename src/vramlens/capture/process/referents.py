"""Objects asked for what they hold, those alone whose answer is known to be harmless.

``gc.get_referents`` runs the type's ``tp_traverse``, made for the collector, which looks at what it
is given and holds
nothing. Whoever holds it can break it: the traverse function of the module ``_asyncio`` in Python
3.12 hands out the iterators of its free list, which nobody owns (Modules/_asynciomodule.c,
``module_traverse``: "Visit freelist"). When our list of them goes away each is put into the free
list again; the list becomes a ring, the next sweep never ends, and the program's asyncio may get
one iterator twice. So:

- a module is never asked: what it holds is in its namespace;
- an object is asked where the function that answers is Python's own or PyTorch's: it lies in
Python's binary, in one
  of the standard library's extension modules, or in one of PyTorch's libraries; or in pandas'
  module of blocks, whose functions Cython wrote: they visit an object's own fields, no more. No
  other of Python's types hands out
  what nobody owns: tests/capture/process/test_referents.py asks every object of every module of the
      standard library;
- of every other C type only what Python shows is read: the namespace, the slots, the elements of a
built-in container.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterable
from itertools import compress
from operator import not_
from typing import Any

from vramlens.ground.live_objects import DESCRIPTORS, class_dict, class_order
from vramlens.ground.program_errors import own_errors

CHUNK = 512
_MOST_HELD = 16_000_000  # references that one look hands out: 128 MB
_TRAVERSE = 71  # Py_tp_traverse in CPython's Include/typeslots.h, part of the stable ABI
_BASE: Any = type.__dict__["__base__"]
_MODULE_NAMESPACE: Any = class_dict(types.ModuleType)["__dict__"]
SEQUENCES: tuple[Any, ...] = (list, tuple, deque, set, frozenset)
_CONTAINER_IDS = frozenset(map(id, (*SEQUENCES, dict)))


class _Symbol(ctypes.Structure):
    """``Dl_info`` of dladdr(3)."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


class Referents:
    """The referents of objects, for one sweep over the heap.

    Attributes:
        asked: ids of types whose instances are asked.
    """

    def __init__(self) -> None:
        self.asked: set[int] = set()
        self._others: set[int] = set()
        self._types: list[type] = []  # kept, for their ids are the keys
        self._get_slot = _slot_getter()
        getter = ctypes.cast(ctypes.pythonapi.PyType_GetSlot, ctypes.c_void_p).value or 0
        self._python, self._extensions, self._torch = (
            _file_of(getter),
            _extension_folders(),
            _torch_folder(),
        )

    def of(self, holders: Iterable[Any]) -> list[Any]:
        """All that these objects hold, together, in their order as far as they are asked."""
        holders = holders if type(holders) is list else list(holders)
        kinds = list(map(type, holders))
        ids = list(map(id, kinds))
        if not self.asked.issuperset(ids):
            for kind in kinds:
                if id(kind) not in self.asked and id(kind) not in self._others:
                    self._judge(kind)
        if self._others.isdisjoint(ids):
            return gc.get_referents(*holders)
        is_other = list(map(self._others.__contains__, ids))
        referents = gc.get_referents(*compress(holders, map(not_, is_other)))
        for holder in compress(holders, is_other):
            referents += shown_by(holder)
        return referents

    def of_one(self, holder: Any) -> list[Any]:
        """The objects that one object holds."""
        kind = type(holder)
        if id(kind) not in self.asked and id(kind) not in self._others:
            self._judge(kind)
        return gc.get_referents(holder) if id(kind) in self.asked else shown_by(holder)

    def place_of_holder(self, held: Any, holders: list[Any]) -> int:
        """The place of the first of some objects that holds another; 0 where none does any
        more.
        """
        holding = (
            place
            for place, holder in enumerate(holders)
            if any(part is held for part in self.of_one(holder))
        )
        return next(holding, 0)

    def _judge(self, kind: type) -> None:
        self._types.append(kind)
        is_harmless = not issubclass(kind, types.ModuleType) and self._is_ours_to_ask(kind)
        (self.asked if is_harmless else self._others).add(id(kind))

    def _is_ours_to_ask(self, kind: type) -> bool:
        """True where all functions that would answer for an instance are Python's or PyTorch's."""
        base: type | None = kind
        while base is not None:
            if not self._is_owned(base):
                return False
            base = _BASE.__get__(base)
        return True

    def _is_owned(self, kind: type) -> bool:
        function = self._get_slot(kind)
        if not function:
            return True
        file = _file_of(function)
        if not file:
            return any(
                name == "torch" or name in sys.stdlib_module_names for name in _module_names(kind)
            )
        path = _real_path(file)
        return (
            file == self._python
            or os.path.dirname(path) in self._extensions
            or path.startswith(self._torch)
            or path == _pandas_blocks()
        )


def _pandas_blocks() -> str:
    """The file of pandas' blocks, which hold a data frame's columns; empty without pandas."""
    file = getattr(sys.modules.get("pandas._libs.internals"), "__file__", None)
    return _real_path(file) if type(file) is str else ""


def shown_by(holder: Any) -> list[Any]:
    """The objects that an object holds, as far as Python shows it: its namespace, its slots, its
    elements. No code of its runs.
    """
    shown: list[Any] = [type(holder)]
    if issubclass(type(holder), types.ModuleType):
        with own_errors():
            return [_MODULE_NAMESPACE.__get__(holder)]
    if issubclass(type(holder), type):
        shown += dict(class_dict(holder)).values()
    for kind in class_order(type(holder)):
        for name, member in list(class_dict(kind).items()):
            if _is_storage(name, member):
                with own_errors():
                    shown.append(member.__get__(holder))
    for container in SEQUENCES:
        if issubclass(type(holder), container):
            shown += container.__iter__(holder)
    if issubclass(type(holder), dict):
        shown += [*dict.keys(holder), *dict.values(holder)]
    return shown


def _is_storage(name: Any, member: Any) -> bool:
    """True for the descriptors of a namespace and of slots."""
    if name == "__dict__":
        return type(member) in DESCRIPTORS
    return type(member) is types.MemberDescriptorType and not str(name).startswith("__")


def lengths_of(holders: list[Any]) -> int:
    """The number of things that the built-in containers among some objects hold, together: what
    their answer will take.
    """
    ids = map(id, map(type, holders))
    return sum(map(len, compress(holders, map(_CONTAINER_IDS.__contains__, ids))))


def without_giants(holders: list[Any], room: int) -> list[Any]:
    """Objects that together hold no more than so many things: without those that would be too
    many.
    """
    if lengths_of(holders) <= room:
        return holders
    fitting = []
    for holder in holders:
        length = lengths_of([holder])
        if length <= room:
            fitting.append(holder)
            room -= length
    return fitting


def chunk_from(objects: list[Any], start: int) -> list[Any]:
    """The next ``CHUNK`` objects, without those that hold more than one look may hand out."""
    return without_giants(objects[start : start + CHUNK], _MOST_HELD)


def _slot_getter() -> Callable[[type], int | None]:
    getter = ctypes.pythonapi.PyType_GetSlot
    # By its address: ctypes asks an object that it is given for its ``__class__``, which a
    # metaclass may define.
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    get_slot = prototype(ctypes.cast(getter, ctypes.c_void_p).value or 0)
    return lambda kind: get_slot(id(kind), _TRAVERSE)


_files: dict[int, str] = {}
_real_paths: dict[str, str] = {}


def _file_of(function: int) -> str:
    """The binary that a function lies in, as the loader names it; empty where that cannot be
    told.
    """
    if function not in _files:
        _files[function] = _asked_file(function)
    return _files[function]


def _real_path(file: str) -> str:
    """The file without links; asked once, for every question to the system lets other threads run
    in the middle of a search.
    """
    if file not in _real_paths:
        _real_paths[file] = os.path.realpath(file)
    return _real_paths[file]


def _asked_file(function: int) -> str:
    symbol = _Symbol()
    try:
        # Not CDLL, which would let other threads run meanwhile.
        is_known = ctypes.PyDLL(None).dladdr(ctypes.c_void_p(function), ctypes.byref(symbol))
    except (AttributeError, OSError, TypeError):  # Windows
        return ""
    return os.fsdecode(symbol.file) if is_known and symbol.file else ""


def _extension_folders() -> set[str]:
    """Where the standard library's extension modules lie."""
    folders = [
        sysconfig.get_config_var("DESTSHARED"),
        os.path.join(sysconfig.get_path("platstdlib"), "lib-dynload"),
    ]
    folders += [place for place in sys.path if os.path.basename(place) == "lib-dynload"]
    return {os.path.realpath(folder) for folder in folders if folder}


def _torch_folder() -> str:
    names = getattr(sys.modules.get("torch"), "__dict__", {})
    file = names.get("__file__")
    return os.path.dirname(os.path.realpath(file)) + os.sep if type(file) is str else os.devnull


def _module_names(kind: type) -> tuple[str, ...]:
    """The package that a type says it is from; for systems that do not tell where a function
    lies.
    """
    module = class_dict(kind).get("__module__", "builtins")
    return (module.partition(".")[0],) if type(module) is str else ()
