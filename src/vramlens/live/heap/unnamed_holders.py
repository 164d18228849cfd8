"""What no name leads to although the program has it: iterators of running loops, tensors behind NumPy
arrays, and those in results of PyTorch's functions.

The iterator of a ``for`` loop and the context manager of a ``with`` block are on the interpreter's
own stack, where nobody can look; but their objects are known to the collector, and nothing that it
knows holds them. A NumPy array that shares a tensor's memory holds that tensor, and tells the
collector nothing; so does a tuple of such arrays and numbers. A result such as
``torch.return_types.topk`` is a tuple that the collector does not track. All are looked for only
where tensors were born that the search has not reached.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterable, Iterator
from itertools import compress, filterfalse
from operator import not_
from typing import Any

from vramlens.capture.process.tracked_objects import tracked_objects, tuples_below
from vramlens.capture.process.undisturbed import undisturbed
from vramlens.live.growth.births import BEFORE, Births
from vramlens.live.heap.objects import class_dict, class_order, is_own_file, is_users
from vramlens.live.heap.search import Search

_CHUNK = 1024
"""Objects whose referents are asked for at once: a fraction of a millisecond between looks at the
clock.
"""
_MOST_OBJECTS = 1_000_000
"""Elements of an array of objects that are read: 8 MB for their list."""
_DEEPEST_VIEW = 8
"""Arrays that are views of arrays: NumPy itself folds views of views, so two are usual."""
_DEEPEST_TUPLE = 8
"""Tuples in tuples that are looked into; one that is deeper may hold arrays."""
_LEFT_ALONE = frozenset((id(tuple), id(dict)))
"""Types that the collector does not track where nothing inside of them is tracked; by identity, as a
program's metaclass may have an ``__eq__`` of its own.
"""
_EXITS = ("__exit__", "__aexit__")
LOOP, BLOCK = "the iterator of a running loop", "the context manager of a running with block"


class _NoArray:
    """Stands for NumPy's array where there is no NumPy."""


def unreached_tensors(search: Search, births: Births) -> int:
    """How many tensors that may have been born while they were watched the search has not
    reached. What other threads made while it went on is in flight.
    """
    search.torch.refresh()
    in_flight = births.made_since_look()
    return sum(
        1
        for value in not_reached(search)
        if id(value) not in in_flight and _is_new(search, births, value)
    )


def not_reached(search: Search) -> list[Any]:
    """The tensors and storages that the collector knows and a search has not reached."""
    kinds = {**search.torch.tensor_types, **search.torch.storage_types}
    every = tracked_objects()
    tensors = compress(every, map(kinds.__contains__, map(id, map(type, every))))
    return [value for value in tensors if id(value) not in search.seen]


def _is_new(search: Search, births: Births, tensor: Any) -> bool:
    storage = search.unreached_storage(tensor)
    return storage is not None and births.born(storage, tensor) != BEFORE


def search_loose(search: Search) -> None:
    """Goes on with a search at loose iterators and context managers, and behind arrays."""
    search.go_further()
    with undisturbed(), search.torch.torch._C.DisableTorchFunction():
        search.go_on(list(_stack_objects(search)))
        _look_behind_arrays(search)


def search_briefly_on(search: Search, births: Births) -> None:
    """Goes on with a brief search at the user's generators that it has not reached, and behind NumPy's
    arrays: a running ``for`` loop may be all that holds a generator, and a column of a data frame all
    that holds a tensor.

    To list them takes longer than the search. What grows has young tensors, so it is done only where
    the search has not reached some of these; for generators also where a collection has left none.
    """
    young = births.young_tensors()
    if not young or _has_unreached(search, young):
        _search_generators(search)
    if _has_unreached(search, young):
        with undisturbed(), search.torch.torch._C.DisableTorchFunction():
            _look_behind_arrays(search)


def _has_unreached(search: Search, tensors: Iterable[Any]) -> bool:
    return any(search.unreached_storage(tensor) is not None for tensor in tensors)


def _search_generators(search: Search) -> None:
    every = tracked_objects()
    is_generator = map(id(types.GeneratorType).__eq__, map(id, map(type, every)))
    generators = [value for value in compress(every, is_generator) if id(value) not in search.seen]
    del every
    users = [(LOOP, value) for value in generators if is_users(value.gi_code.co_filename)]
    search.go_on(users)


def _unheld_objects(search: Search) -> Iterator[Any]:
    """Unreached objects that nothing holds which the collector knows."""
    every = tracked_objects()
    unreached = list(compress(every, map(not_, map(search.seen.__contains__, map(id, every)))))
    del every
    unreached += list(tuples_below(unreached, search.referents))
    held_ids: set[int] = set()
    for low in range(0, len(unreached), _CHUNK):
        if search.is_over:
            search.skipped.append("iterators of running loops (not searched: the time ran out)")
            return
        held_ids.update(map(id, search.referents.of(unreached[low : low + _CHUNK])))
    for value in unreached:
        if id(value) not in held_ids:
            yield value


def _stack_objects(search: Search) -> Iterator[tuple[str, Any]]:
    """Iterators and context managers that nothing holds which the collector knows."""
    iterates: dict[int, bool] = {}
    for value in _unheld_objects(search):
        kind = type(value)
        if kind is types.MethodType:
            if _is_exit(value.__func__):
                yield BLOCK, value
            continue
        if id(kind) not in iterates:
            iterates[id(kind)] = any("__next__" in class_dict(base) for base in class_order(kind))
        if iterates[id(kind)] and not (kind is types.GeneratorType and _is_ours(value.gi_code)):
            yield LOOP, value


def _is_exit(function: Any) -> bool:
    is_function = type(function) is types.FunctionType
    return is_function and function.__name__ in _EXITS and not _is_ours(function.__code__)


def _is_ours(code: types.CodeType) -> bool:
    return is_own_file(code.co_filename)


def _look_behind_arrays(search: Search) -> None:
    """Takes in the tensors whose memory arrays share, what arrays of objects hold, and results of
    PyTorch's functions.
    """
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    array = kind if type(kind) is type else _NoArray
    first = len(search.order)
    for place in [place for place in search.roots if type(search.order[place]) is array]:
        search.take_in_contents(place, _objects_in(search.order[place], array))
    search.explore_from(first)
    low = 0
    while low < len(search.order):
        first = len(search.order)
        if not _look_behind_arrays_of(search, low, array):
            search.skipped.append(
                "tensors behind NumPy arrays (not all searched: the time ran out)"
            )
            return
        search.explore_from(first)  # tuples and lists in arrays, and arrays in those
        low = first


def _look_behind_arrays_of(search: Search, low: int, array: type) -> bool:
    """Takes in what is behind the arrays that objects from a position on hold; false where the
    time ran out.
    """
    last = len(search.order)
    for start in range(low, last, _CHUNK):
        end = min(start + _CHUNK, last)
        if search.is_over:
            return False
        referents = search.referents.of(search.order[start:end])
        if _may_hold_arrays(search, referents, array):
            for place in range(start, end):
                _take_in_arrays_of(search, place, array)
    return True


def _take_in_arrays_of(search: Search, place: int, array: type) -> None:
    for value in search.referents.of_one(search.order[place]):
        if id(value) in search.seen:
            continue
        if type(value) is array:
            _take_in_array(search, place, value, array)
        elif _may_hold_arrays(search, [value], array):
            search.take_in(place, (("", value),))  # and what it holds in the next round


def _may_hold_arrays(search: Search, values: list[Any], array: type) -> bool:
    """Whether an array or a result is among some objects, or in a tuple or dict among them that the
    collector leaves alone: arrays, numbers, results and such tuples are all that it holds.
    """
    for _ in range(_DEEPEST_TUPLE):
        kinds = list(map(id, map(type, values)))
        if id(array) in kinds or not search.torch.result_types.keys().isdisjoint(kinds):
            return True
        left_alone = compress(values, map(_LEFT_ALONE.__contains__, kinds))
        by_id = {id(value): value for value in filterfalse(gc.is_tracked, left_alone)}
        if not by_id:
            return False
        values = search.referents.of(list(by_id.values()))
    return True


def _take_in_array(search: Search, place: int, value: Any, array: type) -> None:
    tensor = _tensor_behind(search, value, array, class_dict(array)["base"])
    if tensor is not None:
        search.take_in(place, (("", value), (".base", tensor)))
        return
    objects = _objects_in(value, array)
    if objects:
        search.take_in_contents(search.take_in(place, (("", value),)), objects)


def _objects_in(value: Any, array: Any) -> list[tuple[str, Any]]:
    """What an array of objects holds, by index; empty for other arrays and for those that are
    too large.
    """
    if (
        not class_dict(array)["dtype"].__get__(value).hasobject
        or array.size.__get__(value) > _MOST_OBJECTS
    ):
        return []
    return [
        (f"[{index}]", element)
        for index, element in enumerate(array.ravel(value, "K").tolist())
        if gc.is_tracked(element)
    ]


def _tensor_behind(search: Search, value: Any, array: type, base: Any) -> Any:
    for _ in range(_DEEPEST_VIEW):
        value = base.__get__(value)
        if search.torch.is_tensor(value):
            return value
        if type(value) is not array:
            break
    return None
