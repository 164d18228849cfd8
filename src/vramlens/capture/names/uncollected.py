"""Storages that the program is done with: only objects in circles keep them, until Python's collector runs.

An object is garbage where all references to it come from garbage. That is decided as the collector does it
(CPython's Python/gc.c, ``deduce_unreachable``), for what modules, optimizers and holders of large tensors
lead to instead of for everything: what has more references than these objects explain is held from
outside, and so is all that it leads to. References that nobody explains, such as those of C++, count as
from outside: what is called garbage is garbage.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from time import thread_time
from typing import Any

from vramlens.capture.names.live_heap import (
    CONTAINERS,
    LiveHeap,
    TensorStorage,
    attribute_text,
)
from vramlens.capture.process.reference_index import ReferenceIndex
from vramlens.capture.process.referents import Referents
from vramlens.capture.process.tracked_objects import tracked_objects
from vramlens.ground.live_objects import class_dict, class_name

SECONDS = 1.0
_MOST_OBJECTS = 200_000
_MOST_MEMBERS = 100_000
"""Of one container: more are data."""
_SIZED = frozenset(map(id, (*CONTAINERS, set, frozenset)))
"""The ids of types whose length is Python's own to tell."""
_LEAST_BYTES = 2**16
"""Of a tensor for whose holders it is worth a sweep."""
_LOOK_AT_THE_CLOCK = 4096  # objects and members
_LONGEST_CIRCLE = 120
_MOST_STEPS = 2000
"""On the way back to an object."""
_WITHOUT_INSTANCES = "containers and functions"
_NAMELESS: tuple[type, ...] = (
    *CONTAINERS,
    types.CellType,
    types.FunctionType,
    types.MethodType,
    types.FrameType,
)


def uncollected_storages(heap: LiveHeap, index: ReferenceIndex) -> dict[TensorStorage, str]:
    """The storages that only garbage keeps, each with the circle that does: ``Node.children[0].parent``.
    None where there was no time to decide.

    Args:
        index: of the heap's objects.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return {}  # there, references are counted in other ways
    until = thread_time() + SECONDS
    reached = _Reached(_starts(heap, index, until))
    if not reached.follow(until):
        return {}
    own_lists = [heap.objects, index.objects, *heap.live.values()]
    garbage = _garbage_of(reached, own_lists, until)
    return _storages_of(heap, _Circles(heap, reached, garbage), until) if garbage else {}


def _starts(heap: LiveHeap, index: ReferenceIndex, until: float) -> Iterator[Any]:
    """Yields what may keep tensors: modules, optimizers, and who holds a large tensor."""
    yield from heap.live.get("module", ())
    yield from heap.live.get("optimizer", ())
    large = {
        id(tensor)
        for tensor in heap.live.get("tensor", ())
        if (storage := heap.storage(tensor)) is not None and storage.size_bytes >= _LEAST_BYTES
    }
    if large:
        yield from index.referrers_of(large, until)


class _Reached:
    """Objects, and all that they lead to but for classes and modules.

    Attributes:
        objects: all of them.
        places: of each, by ``id``, its place among them.
        below: for each, the places of what it holds.
    """

    def __init__(self, starts: Iterable[Any]) -> None:
        self.objects: list[Any] = []
        self.places: dict[int, int] = {}
        self.below: list[list[int]] = []
        self._referents = Referents()
        for start in starts:
            self._place_of(start)

    def follow(self, until: float) -> bool:
        """Follows all references; False where these are too many, or the time is over."""
        namespaces, visited = _namespaces(), 0
        for holder in self.objects:  # which grow on the way
            members = self._members(holder)
            visited += 1 + len(members)
            if visited >= _LOOK_AT_THE_CLOCK:
                visited = 0
                if thread_time() > until or len(self.objects) > _MOST_OBJECTS:
                    return False
            self.below.append(
                [
                    self._place_of(member)
                    for member in members
                    if id(member) in self.places or _is_followed(member, namespaces)
                ]
            )
        return True

    def frozen(self) -> list[int]:
        """The places of what ``gc.freeze`` hides from collections, and what that leads to stays with it."""
        if not gc.get_freeze_count():
            return []
        collected = set(map(id, tracked_objects()))  # all but tuples
        return [
            place
            for place, member in enumerate(self.objects)
            if id(member) not in collected and not issubclass(type(member), tuple)
        ]

    def is_unchanged(self, places: Iterable[int], until: float) -> bool:
        """Whether objects still hold what they held: other threads may run on in between. False, too, where the
        time is over.
        """
        for number, place in enumerate(places):
            if number % _LOOK_AT_THE_CLOCK == 0 and thread_time() > until:
                return False
            members = map(id, self._members(self.objects[place]))
            if self.below[place] != [
                self.places[member] for member in members if member in self.places
            ]:
                return False
        return True

    def _members(self, holder: Any) -> list[Any]:
        """What an object holds; nothing of a giant: what that has counts as held from outside."""
        is_giant = id(type(holder)) in _SIZED and len(holder) > _MOST_MEMBERS
        return [] if is_giant else self._referents.of_one(holder)

    def _place_of(self, member: Any) -> int:
        place = self.places.setdefault(id(member), len(self.objects))
        if place == len(self.objects):
            self.objects.append(member)
        return place


def _is_followed(member: Any, namespaces: set[int]) -> bool:
    cls = type(member)
    if issubclass(cls, (type, types.ModuleType)) or not gc.is_tracked(member):
        return False
    return id(member) not in namespaces


def _namespaces() -> set[int]:
    """The ids of all modules' namespaces."""
    getter = class_dict(types.ModuleType)["__dict__"]
    modules = list(sys.modules.values())
    return {id(getter.__get__(m)) for m in modules if issubclass(type(m), types.ModuleType)}


def _garbage_of(reached: _Reached, own_lists: Sequence[list[Any]], until: float) -> set[int]:
    """The places of objects that nothing outside of them leads to.

    Args:
        own_lists: lists of this look, whose references do not count.
        until: when to end, by ``time.thread_time``.
    """
    explained = Counter(chain.from_iterable(reached.below))
    listed = Counter(
        reached.places[identity]
        for identity in map(id, chain.from_iterable(own_lists))
        if identity in reached.places
    )
    (unheld,) = _reference_counts([object()])
    counts = _reference_counts(reached.objects)
    # What nothing holds any more but this look, another thread has let go of since it began.
    waiting = [
        place
        for place, count in enumerate(counts)
        if count - unheld - listed[place] > explained[place] or not explained[place]
    ]
    waiting += reached.frozen()
    garbage = set(range(len(counts))).difference(waiting)
    while waiting:
        for place in reached.below[waiting.pop()]:
            if place in garbage:
                garbage.remove(place)
                waiting.append(place)
    return garbage if reached.is_unchanged(garbage, until) else set()


def _reference_counts(objects: list[Any]) -> list[int]:
    """How many references each has; what the list and this call add is the same for all."""
    return [sys.getrefcount(member) for member in objects]


class _Circles:
    """The circles of garbage, in words."""

    def __init__(self, heap: LiveHeap, reached: _Reached, garbage: set[int]) -> None:
        self.garbage, self._heap, self._reached = garbage, heap, reached
        self._referents = Referents()
        self._words: dict[int, str] = {}
        self._above: dict[int, int] = {}
        for place in garbage:
            for below in reached.below[place]:
                self._above.setdefault(below, place)

    def tensors(self) -> list[tuple[Any, int]]:
        """The tensors among the garbage, with their places."""
        objects = self._reached.objects
        return [
            (objects[place], place)
            for place in self.garbage
            if self._heap.kind(objects[place]) == "tensor"
        ]

    def words(self, place: int) -> str:
        """The circle that keeps an object."""
        path: dict[int, None] = {}
        while place not in path and place not in self._words and place in self._above:
            path[place] = None
            place = self._above[place]
        words = self._words.get(place)
        if words is None:
            circle = list(path)[list(path).index(place) :] if place in path else []
            words = self._words_of(circle)
        self._words.update(dict.fromkeys(path, words))
        return words

    def _words_of(self, circle: Sequence[int]) -> str:
        """The shortest way from an instance in a circle back to itself."""
        members = (self._reached.objects[place] for place in circle)
        start = next(
            (member for member in members if not issubclass(type(member), _NAMELESS)), None
        )
        if start is None:
            return _WITHOUT_INSTANCES
        name = class_name(type(start))
        ways: deque[tuple[Any, str]] = deque([(start, name)])
        visited: set[int] = set()
        while ways and len(visited) < _MOST_STEPS:
            holder, way = ways.popleft()
            for label, member in self._edges(holder):
                further = (way + attribute_text(label)).replace("._modules.", ".")
                if member is start:
                    return further if len(further) <= _LONGEST_CIRCLE else name
                if (
                    id(member) in visited
                    or self._reached.places.get(id(member)) not in self.garbage
                ):
                    continue
                visited.add(id(member))
                if not label and not issubclass(type(member), _NAMELESS):
                    further = f"{way} -> {class_name(type(member))}"
                if len(further) <= _LONGEST_CIRCLE:
                    ways.append((member, further))
        return name

    def _edges(self, holder: Any) -> list[tuple[str, Any]]:
        """What an object holds, with the text that leads there, as far as there is one."""
        # A closure is a tuple; others may run their own code when they are asked for names.
        edges = [] if issubclass(type(holder), tuple) else self._heap.edges(holder)
        labeled = {id(member) for _, member in edges}
        referents = self._referents.of_one(holder)
        return [*edges, *(("", member) for member in referents if id(member) not in labeled)]


def _storages_of(heap: LiveHeap, circles: _Circles, until: float) -> dict[TensorStorage, str]:
    """The circles by the storages that nothing but garbage keeps; of parameters those of their gradients, too."""
    tensors = circles.tensors()
    garbage_ids = {id(tensor) for tensor, _ in tensors}
    sharing: Counter[TensorStorage] = Counter()
    live_storages: set[TensorStorage] = set()
    for tensor in heap.live.get("tensor", ()):
        storage = heap.storage(tensor)
        if storage is not None:
            sharing[storage.whole] += 1
            if id(tensor) not in garbage_ids:
                live_storages.add(storage.whole)
    words: dict[TensorStorage, str] = {}
    known_ids = set(map(id, heap.live.get("tensor", ())))
    for tensor, place in tensors:
        if thread_time() > until:
            break
        gradient = heap.gradient(tensor)
        for part in (tensor, gradient if id(gradient) not in known_ids else None):
            storage = None if part is None or not heap.is_plain(part) else heap.storage(part)
            if storage is None or storage.whole in live_storages:
                continue
            # More uses are tensors of C++, such as what autograd saved.
            if heap.storage_uses(part) <= 1 + max(sharing[storage.whole], 1):
                words[storage.whole] = circles.words(place)
    return words
