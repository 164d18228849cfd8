"""Objects that no root reaches: what holds what among them, and in which groups tensors are kept.

Everything that the collector knows and the search did not reach is looked at once: what holds what
in there, which of it goes round in a circle, and whether something outside of it holds it too (then
it is not garbage, and its owner is one that Python cannot see).
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from operator import not_
from typing import Any

from vramlens.capture.process.tracked_objects import tracked_objects, tuples_below
from vramlens.live.growth.births import Births
from vramlens.live.growth.pace import FEWEST
from vramlens.live.heap.cycles import circle_in, components
from vramlens.live.heap.objects import class_name, is_own_file
from vramlens.live.heap.roots import Root
from vramlens.live.heap.search import Search
from vramlens.live.heap.tensors import Storage
from vramlens.live.heap.unnamed_holders import unreached_tensors

_MOST_OBJECTS = 400_000
"""Unreached objects that are read. More are data of a library that the search's time did not reach,
and reading them would take as long as the search itself.
"""
_LOOK_AT_THE_CLOCK = 1024  # objects
_OWN_REFERENCES = 3  # our list, the loop's variable, getrefcount's argument
# What hangs on classes that are written in C, which tell the collector nothing of it.
_BORING = (
    types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType, types.BuiltinFunctionType, weakref.ref, types.CodeType, Root,
)  # fmt: skip
_OWN_CLASSES = ("Search", "Births", "HeapLook")
_NUMBERED_NODES = ("0", "1", "2", "3", "AccumulateGrad")


@dataclass(slots=True)
class UnreachedHeap:
    """Objects that no root reaches.

    Attributes:
        objects: all of them, autograd nodes that they hold included.
        below: for each, the indexes of what it holds.
        storages: storages of those that are tensors, by index.
        labels: by two indexes, how an autograd object holds another.
        savers: by index of a tensor, the autograd node that saved it.
    """

    objects: list[Any] = field(default_factory=list)
    below: list[list[int]] = field(default_factory=list)
    storages: dict[int, Storage] = field(default_factory=dict)
    labels: dict[tuple[int, int], str] = field(default_factory=dict)
    savers: dict[int, Any] = field(default_factory=dict)

    def clear(self) -> None:
        """Lets go of the objects."""
        self.objects.clear()
        self.below.clear()
        self.savers.clear()


@dataclass(frozen=True, slots=True)
class UnreachedGroup:
    """Storages that are kept in the same way.

    Attributes:
        places: indexes of a circle, or of the topmost object alone.
        is_cycle: whether it is a circle.
        is_held_outside: whether something that Python cannot see holds it.
    """

    places: tuple[int, ...]
    is_cycle: bool
    is_held_outside: bool


GroupMembers = list[tuple[int, UnreachedGroup]]
"""Indexes of tensors that are kept in the same way, each with its own group."""


def read_unreached(search: Search, births: Births) -> UnreachedHeap:
    """The objects that no root reaches; none where there are no tensors among them, or no time, or a
    search did not go to the end of an autograd graph.
    """
    if search.has_cut_graphs or unreached_tensors(search, births) < FEWEST:
        return UnreachedHeap()
    search.go_further()
    heap = UnreachedHeap(_unreached_objects(search, births))
    if _read_edges(search, heap):
        return heap
    search.skipped.append("unreachable objects (not all searched: the time ran out)")
    return UnreachedHeap()


def _read_edges(search: Search, heap: UnreachedHeap) -> bool:
    """Reads what each object holds; false where the time ran out."""
    torch, objects = search.torch, heap.objects
    index = {id(candidate): place for place, candidate in enumerate(objects)}
    for place, candidate in enumerate(objects):  # autograd nodes are added on the way
        if place % _LOOK_AT_THE_CLOCK == 0 and search.is_over:
            return False
        referents = map(id, search.referents.of_one(candidate))
        children = [index[identity] for identity in referents if identity in index]
        heap.below.append(children)
        if torch.is_tensor(candidate):
            _add_storage(search, heap, place)
        if torch.is_tensor(candidate) or torch.is_node(candidate):
            children += _autograd_children(search, heap, index, place)
    return True


def _add_storage(search: Search, heap: UnreachedHeap, place: int) -> None:
    storage = search.unreached_storage(heap.objects[place])
    if storage is not None:
        heap.storages[place] = storage


def _unreached_objects(search: Search, births: Births) -> list[Any]:
    """What the collector knows and the search did not reach, without what is vramlens's own, and
    without tensors that are in flight in other threads.
    """
    tables = (search.order, search.seen, search.storages, search.storage_at)
    own_ids = {id(search), *map(id, tables), *births.made_since_look()}
    every = tracked_objects()
    own_ids.add(id(every))
    boring = {id(kind) for kind in _BORING}
    unreached = list(compress(every, map(not_, map(search.seen.__contains__, map(id, every)))))
    tuples = tuples_below(unreached, search.referents)
    objects = [
        candidate
        for candidate in chain(unreached, tuples)
        if id(type(candidate)) not in boring
        and id(candidate) not in own_ids
        and id(candidate) not in search.seen
    ]
    del every, unreached
    return [candidate for candidate in objects if not _is_own(candidate)][:_MOST_OBJECTS]


def _is_own(candidate: Any) -> bool:
    kind = type(candidate)
    if kind is types.FrameType:
        return is_own_file(candidate.f_code.co_filename)
    return class_name(kind) in _OWN_CLASSES and kind.__module__.startswith("vramlens.live")


def _autograd_children(
    search: Search, heap: UnreachedHeap, index: dict[int, int], place: int
) -> list[int]:
    """Indexes of what a tensor or node holds through autograd; new ones join the heap."""
    torch, holder = search.torch, heap.objects[place]
    children: list[int] = []
    for label, child in torch.held_by_autograd(holder):
        is_new = id(child) not in index and id(child) not in search.seen
        if is_new and (torch.is_node(child) or torch.is_tensor(child)):
            index[id(child)] = len(heap.objects)
            heap.objects.append(child)
        child_place = index.get(id(child))
        if child_place is None:
            continue
        children.append(child_place)
        heap.labels.setdefault((place, child_place), label)
        if label.startswith("._saved"):
            heap.savers.setdefault(child_place, holder)
    return children


def grouped_storages(search: Search, heap: UnreachedHeap) -> list[GroupMembers]:
    """Storages by how they are kept: the same classes in a circle are the same leak."""
    component, circles = components(heap.below)
    above = _holders(heap.below)
    held_outside = _held_outside(search, heap, above)
    circle_groups: dict[int, UnreachedGroup] = {}
    by_key: dict[Any, GroupMembers] = {}
    for place in heap.storages:
        ancestry = _ancestry(place, above, component, circles, held_outside)
        if not ancestry.circles:
            group = UnreachedGroup((ancestry.tops[0],), False, True)
        elif ancestry.circles[0] in circle_groups:
            group = circle_groups[ancestry.circles[0]]
        else:
            circle = circle_in(heap.below, heap.labels, circles[ancestry.circles[0]])
            group = UnreachedGroup(circle, True, ancestry.is_held_outside)
            circle_groups[ancestry.circles[0]] = group
        key = (group.is_cycle, _class_names(search, heap, group))
        by_key.setdefault(key, []).append((place, group))
    return list(by_key.values())


def _class_names(search: Search, heap: UnreachedHeap, group: UnreachedGroup) -> tuple[str, ...]:
    """The classes in a group, which tell it from others."""
    objects = [heap.objects[place] for place in group.places]
    names = {class_name(type(member)) for member in objects}
    if group.is_cycle and any(search.torch.is_node(member) for member in objects):
        # An autograd graph has many ways round; what Python can name tells them apart.
        names = {name for name in names if not name.endswith(_NUMBERED_NODES)}
    return tuple(sorted(names))


def _holders(below: Sequence[Sequence[int]]) -> list[list[int]]:
    """For each object the indexes of what holds it."""
    above: list[list[int]] = [[] for _ in below]
    for place, children in enumerate(below):
        for child in children:
            above[child].append(place)
    return above


@dataclass(frozen=True, slots=True)
class _Ancestry:
    """What holds an object, over any number of others.

    Attributes:
        tops: those that nothing holds.
        circles: numbers of the circles on the way, the nearest first.
        is_held_outside: whether something outside holds any of it.
    """

    tops: list[int]
    circles: list[int]
    is_held_outside: bool


def _ancestry(
    place: int,
    above: Sequence[Sequence[int]],
    component: Sequence[int],
    circles: Mapping[int, Sequence[int]],
    held_outside: set[int],
) -> _Ancestry:
    visited, waiting = {place}, [place]
    tops: list[int] = []
    numbers: dict[int, None] = {}
    for ancestor in waiting:
        if component[ancestor] in circles:
            numbers[component[ancestor]] = None
        fresh = [holder for holder in above[ancestor] if holder not in visited]
        visited.update(fresh)
        waiting.extend(fresh)
        if not above[ancestor]:
            tops.append(ancestor)
    is_held_outside = not held_outside.isdisjoint(visited)
    return _Ancestry(tops or [waiting[-1]], list(numbers), is_held_outside)


def _held_outside(search: Search, heap: UnreachedHeap, above: Sequence[Sequence[int]]) -> set[int]:
    """Objects with more references than the others in here and we explain: C++ or C code has
    them.
    """
    places = set()
    objects = heap.objects
    for place in range(len(objects)):
        candidate = objects[place]
        if search.torch.is_tensor(candidate) or search.torch.is_node(candidate):
            continue  # PyTorch's own references count here
        if sys.getrefcount(candidate) - _OWN_REFERENCES > len(above[place]):
            places.add(place)
    return places
