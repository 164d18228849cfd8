"""Names of tensors that are not a model's, after who holds them."""

from __future__ import annotations

import functools
import inspect
import itertools
import types
import weakref
from collections.abc import Container
from itertools import chain, islice
from time import thread_time
from typing import Any

from vramlens.capture.names.live_heap import (
    CONTAINERS,
    NAMESPACE,
    PARTS_OF_FUNCTION,
    LiveHeap,
    attribute_text,
    items_of,
)
from vramlens.capture.process.referents import SEQUENCES, Referents
from vramlens.ground.live_objects import class_name

_MOST_HOLDERS = 8
_LEVELS = 5
SEARCH_SECONDS = 2.5
_INSIDES: tuple[type, ...] = (
    types.CellType,
    types.FrameType,
    types.GeneratorType,
    types.CoroutineType,
)
_WEAK: tuple[type, ...] = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
_ENDS: tuple[type, ...] = (*_INSIDES[1:], types.ModuleType, types.FunctionType, type)
_CACHE = type(functools.lru_cache(len))
_MOST_CALLS = 10_000
"""Of one cache."""
_MOST_LOOKED_AT = 8
"""Of the objects of a class, and of what is in one of their containers."""
IN_CALL = "local of "
"""How the name of what a call's variable keeps begins."""
_NOBODYS = "?"
"""How the name of a list begins that nobody is known to hold."""


class HolderNames:
    """The holders of some tensors: a few sweeps over the heap, from the tensors upwards."""

    def __init__(
        self,
        heap: LiveHeap,
        paths: dict[int, str],
        tensors: list[Any],
        *,
        seconds: float | None = None,
    ) -> None:
        self._heap, self._paths = heap, paths
        self._edges: dict[int, list[tuple[Any, str]]] = {}
        self._calls: dict[str, dict[int, int]] = {}
        self._of_class: dict[str, list[Any]] = {}
        self._links: dict[str, str] = {}
        self._referents = Referents()
        allowed = SEARCH_SECONDS if seconds is None else seconds
        children, until = tensors, thread_time() + allowed
        for _ in range(_LEVELS):
            sought = {id(child) for child in children} - self._edges.keys()
            if not sought or thread_time() > until:
                break
            self._edges.update((identity, []) for identity in sought)
            children = self._sweep(sought, until)

    def name(self, tensor: Any) -> str:
        """The name that leads to the tensor from a module, a class, an instance or a variable; ""
        if nothing is known.
        """
        name = self._best(self._edges.get(id(tensor), []), _LEVELS)
        return name.removeprefix(_NOBODYS).removeprefix("__main__.")

    def links(self, name: str) -> str:
        """The attributes by which the objects that this name begins with lead to others of their class:
        ``.parent, .children``; "" where none do, or it begins otherwise. It is asked after all names.
        """
        first = name.partition(".")[0]
        if first not in self._links:
            self._links[first] = self._links_of(self._of_class.get(first, []))
        return self._links[first]

    def _links_of(self, owners: list[Any]) -> str:
        single: dict[str, None] = {}
        several: dict[str, None] = {}
        for owner in owners:
            cls = type(owner)
            for name, member in self._heap.attributes(owner):
                if type(member) is cls:
                    single[f".{name}"] = None
                elif any(type(element) is cls for element in _first_elements(member)):
                    several[f".{name}"] = None
        return ", ".join({**single, **several})

    def _sweep(self, sought: set[int], until: float) -> list[Any]:
        """Notes who holds the sought; the holders of which it is worth asking who holds them."""
        holders = []
        for holder in self._heap.index(until).referrers_of(sought, until):
            is_end = type(holder) in _ENDS or id(holder) in self._paths
            for label, child in self._labels(holder):
                if id(child) in sought and len(self._edges[id(child)]) < _MOST_HOLDERS:
                    self._edges[id(child)].append((holder, label))
                    if not is_end:
                        holders.append(holder)
        return holders

    def _labels(self, holder: Any) -> list[tuple[str, Any]]:
        cls = type(holder)
        if cls is _CACHE:  # without a limit it has a dict of results, else the results themselves
            referents = self._referents.of_one(holder)
            return [("" if type(each) is dict else "[...]", each) for each in referents]
        if cls is itertools.cycle:  # its iterator aside, the list of what it has given
            referents = self._referents.of_one(holder)
            return [("", referent) for referent in referents if type(referent) is list]
        if cls in _INSIDES:
            return [("", referent) for referent in self._referents.of_one(holder)]
        if issubclass(cls, type):  # a class shows its dict only by proxy
            referents = self._referents.of_one(holder)
            return [(NAMESPACE, referent) for referent in referents if type(referent) is dict]
        if cls is types.FunctionType:
            return [(part, getattr(holder, part[1:])) for part in PARTS_OF_FUNCTION]
        if cls is functools.partial:
            return [("", part) for part in (holder.args, holder.keywords)]
        return [(NAMESPACE, self._heap.namespace(holder)), *self._heap.edges(holder)]

    def _best(self, edges: list[tuple[Any, str]], levels: int) -> str:
        """The best name of what is held: one that does not begin with a list that nobody is
        known to hold.
        """
        names = [self._through(holder, label, levels) for holder, label in edges] if levels else []
        return min(
            filter(None, names), key=lambda name: (name.startswith(_NOBODYS), len(name)), default=""
        )

    def _through(self, holder: Any, label: str, levels: int) -> str:
        for owner, how in self._edges.get(id(holder), ()):
            if how == NAMESPACE:
                return self._name_of(owner, levels - 1) + attribute_text(label)
            if how == ".__closure__":
                if str(owner.__module__).startswith("torch."):  # what it hands on while it runs
                    return ""
                return f"{owner.__qualname__}.{owner.__code__.co_freevars[int(label[1:-1])]}"
        return self._name_of(holder, levels - 1) + ("" if label == "._local_tensor" else label)

    def _name_of(self, owner: Any, levels: int) -> str:
        """The name of an owner of something."""
        name = self._name_by_itself(owner)
        if name is not None:
            return name
        cls, edges = type(owner), self._edges.get(id(owner), [])
        if cls is types.CellType:
            return self._best(edges, levels)
        is_container = issubclass(cls, (*CONTAINERS, *_WEAK))
        if is_container or self._heap.kind(owner) == "tensor":
            return self._best(edges, levels) or _NOBODYS + class_name(cls)
        # One of many is known by its place; else its class says more than who has it.
        places = [edge for edge in edges if issubclass(type(edge[0]), CONTAINERS)]
        place = self._best(places, levels)
        is_one_of_many = place.endswith("]") and not place.startswith(_NOBODYS)
        if is_one_of_many:
            return place
        owners = self._of_class.setdefault(class_name(cls), [])
        if len(owners) < _MOST_LOOKED_AT:
            owners.append(owner)
        return class_name(cls)

    def _name_by_itself(self, owner: Any) -> str | None:
        """The name of what needs nobody's name: a module, a class, a function, a frame."""
        cls = type(owner)
        if id(owner) in self._paths:
            return self._paths[id(owner)]
        if issubclass(cls, type):
            return class_name(owner)
        if issubclass(cls, types.ModuleType):
            return str(dict(items_of(self._heap.namespace(owner))).get("__name__"))
        if cls is types.FunctionType:
            return str(owner.__qualname__)
        if cls is _CACHE:
            return name_of_cache(self._heap, owner)
        if cls is itertools.cycle:
            return "itertools.cycle"
        if cls in _ENDS:
            return self._name_of_call(owner)
        return None

    def _name_of_call(self, owner: Any) -> str:
        """The name of a frame, a generator or a coroutine, after its function and which of its calls
        it is.
        """
        referents = self._referents.of_one(owner)
        codes = (code for code in referents if type(code) is types.CodeType)
        code = next(codes, None)
        name = f"{_kind_of(code)}{'function' if code is None else code.co_name}()"
        numbers = self._calls.setdefault(name, {})
        number = numbers.setdefault(id(owner), len(numbers) + 1)
        return f"{IN_CALL}{name}" + (f", call {number}" if number > 1 else "")


def name_of_cache(heap: LiveHeap, cache: Any) -> str:
    """The name of a ``functools.lru_cache``, after its function and with whether it is limited."""
    function = dict(items_of(heap.namespace(cache))).get("__wrapped__")
    name = function.__qualname__ if type(function) is types.FunctionType else "function"
    *_, most_entries, _entries = _CACHE.cache_info(cache)
    return f"{'unlimited ' if most_entries is None else ''}lru_cache of {name}()"


def caches_of(heap: LiveHeap, arguments: Container[int]) -> dict[int, str]:
    """By id, which ``functools.lru_cache`` keeps some objects as arguments of a call, such as the ``self`` of a
    method: the caches' names.
    """
    referents = Referents()
    names: dict[int, str] = {}
    for cache in heap.live.get("lru_cache", ()):
        tables = [entries for entries in referents.of_one(cache) if type(entries) is dict]
        calls = chain.from_iterable(islice(dict.keys(table), _MOST_CALLS) for table in tables)
        cached = {id(argument) for call in calls if type(call) is tuple for argument in call}
        for identity in cached:
            if identity in arguments:
                names.setdefault(identity, name_of_cache(heap, cache))
    return names


def _first_elements(container: Any) -> list[Any]:
    """Some elements of a built-in container; of a dict some values; of anything else none."""
    if issubclass(type(container), dict):
        return list(islice(dict.values(container), _MOST_LOOKED_AT))
    for base in SEQUENCES:
        if issubclass(type(container), base):
            return list(islice(base.__iter__(container), _MOST_LOOKED_AT))
    return []


def _kind_of(code: types.CodeType | None) -> str:
    """What waits between its steps, in a word; "" for a plain call."""
    flags = 0 if code is None else code.co_flags
    if flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return "coroutine "
    return "generator " if flags & inspect.CO_GENERATOR else ""
