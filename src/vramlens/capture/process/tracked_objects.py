"""The objects that Python's collector knows, listed so that no thread of the program can break on it.

``tuple(generator)`` makes its tuple first and fills it while the generator runs; the collector knows
the tuple from the beginning. Where somebody else holds it when it must change its size, the program
fails: "SystemError: Objects/tupleobject.c: bad argument to internal function"
(``_PyTuple_Resize`` and ``PyTuple_SetItem`` ask that there is one reference).

So plain tuples are left out before another thread can run, which is inside one call of a function
in C: Python looks at its switch requests only when that returns. A tuple that something holds is
complete, and is reached from there.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, compress, repeat, starmap, takewhile
from operator import is_, is_not
from time import thread_time
from typing import Any

from vramlens.capture.process.referents import CHUNK, Referents, chunk_from

_FROZEN_SECONDS = 1.5
_MOST_FROZEN = 8_000_000  # objects: with their ids, 1 GB


def tracked_objects(generation: int | None = None) -> list[Any]:
    """What the collector knows, in its order, except plain tuples.

    Args:
        generation: of this one only; None is all.
    """
    arguments = () if generation is None else (generation,)
    box: list[Any] = []
    # Iterators in C, each of which does its part when the one call below comes to it.
    fill: Iterator[Any] = filter(None, map(box.extend, starmap(gc.get_objects, (arguments,))))
    selected = compress(box, map(is_not, map(type, box), repeat(tuple)))
    empty: Iterator[Any] = filter(None, map(box.__delitem__, (slice(None),)))
    objects = list(chain(fill, selected, empty))
    for place, candidate in enumerate(objects):
        if candidate is objects:  # it would keep itself alive, and with it all others
            del objects[place]
            break
    return objects


def tracked_of_types(types: Mapping[int, type], generation: int | None = None) -> list[Any]:
    """What the collector knows of exactly some types, in its order.

    Of all generations it is what refers to one of these types: that reads the heap once and looks
    into no other object, a third of the time of listing everything.

    Args:
        types: by their identity; classes made in Python (or as such), whose instances refer to
            them, and no tuples.
        generation: of this one only; None is all.
    """
    if generation is None:
        listed = starmap(gc.get_referrers, (tuple(types.values()),))
    else:
        listed = starmap(gc.get_objects, ((generation,),))
    box: list[Any] = []
    fill: Iterator[Any] = filter(None, map(box.extend, listed))
    selected = compress(box, map(types.__contains__, map(id, map(type, box))))
    empty: Iterator[Any] = filter(None, map(box.__delitem__, (slice(None),)))
    return list(chain(fill, selected, empty))


def youngest_of_types(types: Mapping[int, type], mark: object) -> list[Any]:
    """What is younger than a mark and of exactly some types, oldest first; all of the youngest
    generation where the mark is not in it.

    Read from the newest on, as far as the mark: hundreds of objects are young, a few are new. All
    in one call of C, as ``tracked_of_types`` is and for its reasons.
    """
    young: list[Any] = []
    new: list[Any] = []
    fill: Iterator[Any] = filter(None, map(young.extend, starmap(gc.get_objects, ((0,),))))
    newest_first = chain.from_iterable(map(reversed, (young,)))
    cut: Iterator[Any] = filter(
        None, map(new.extend, (takewhile(partial(is_not, mark), newest_first),))
    )
    selected = compress(new, map(types.__contains__, map(id, map(type, new))))
    empty: Iterator[Any] = filter(None, map(list.clear, (young, new)))
    return list(chain(fill, cut, selected, empty))[::-1]


def tracked_count() -> int:
    """The number of objects that the collector knows, none of which is held here."""
    return sum(map(len, starmap(gc.get_objects, ((),))))


def referrer_ids(targets: Iterable[Any]) -> set[int]:
    """The ids of what holds one of the targets, as far as the collector knows it."""
    return set(map(id, chain.from_iterable(starmap(gc.get_referrers, (tuple(targets),)))))


def tuples_below(objects: list[Any], referents: Referents) -> Iterator[Any]:
    """Yields the plain tuples that these objects hold, and those in them: each once."""
    seen_ids: set[int] = set()
    holders = objects
    while holders:
        tuples = []
        for start in range(0, len(holders), CHUNK):
            below = referents.of(chunk_from(holders, start))
            for candidate in compress(below, map(is_, map(type, below), repeat(tuple))):
                if id(candidate) not in seen_ids and gc.is_tracked(candidate):
                    seen_ids.add(id(candidate))
                    tuples.append(candidate)
        yield from tuples
        holders = tuples


def everything_alive() -> list[Any]:
    """All objects that the collector knows, also those that ``gc.freeze`` hides (vLLM), as far
    as they are reached.
    """
    objects = tracked_objects()
    referents = Referents()
    if not gc.get_freeze_count():
        objects += list(tuples_below(objects, referents))
        return objects
    until = thread_time() + _FROZEN_SECONDS
    listed = set(map(id, objects))
    objects += [
        module
        for module in list(sys.modules.values())
        if id(module) not in listed and gc.is_tracked(module)
    ]
    listed.update(map(id, objects))
    start = 0
    while start < len(objects) < _MOST_FROZEN and thread_time() < until:
        for referent in referents.of(chunk_from(objects, start)):
            if id(referent) not in listed and gc.is_tracked(referent):
                listed.add(id(referent))
                objects.append(referent)
        start += CHUNK
    return objects
