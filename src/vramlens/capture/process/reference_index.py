"""Who refers to what among some objects, read once and asked many times."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from time import thread_time
from typing import Any

from vramlens.capture.process.referents import CHUNK, Referents, chunk_from

_MOST_REFERENCES = 16_000_000  # 128 MB


class ReferenceIndex:
    """The references of some objects, by chunks of these: asking the objects themselves takes several times as
    long as reading what they said.

    Attributes:
        objects: those that were read, and those for which there was no time.
    """

    def __init__(self, objects: Iterable[Any], until: float) -> None:
        """Reads them.

        Args:
            until: when to end, by ``time.thread_time``.
        """
        self.objects = list(objects)
        self._referents = Referents()
        self._ids_by_chunk: list[array[int]] = []
        references = 0
        for start in range(0, len(self.objects), CHUNK):
            if thread_time() > until or references > _MOST_REFERENCES:
                return
            ids = array("Q", map(id, self._referents.of(chunk_from(self.objects, start))))
            self._ids_by_chunk.append(ids)
            references += len(ids)

    def referrers_of(self, sought: set[int], until: float) -> Iterator[Any]:
        """Yields the objects that refer to one of these ids, as far as there is time."""
        for place, ids in enumerate(self._ids_by_chunk):
            if thread_time() > until:
                return
            if sought.isdisjoint(ids):
                continue
            for candidate in chunk_from(self.objects, place * CHUNK):
                if not sought.isdisjoint(map(id, self._referents.of_one(candidate))):
                    yield candidate

    def clear(self) -> None:
        """Lets go of the objects."""
        self.objects.clear()
        self._ids_by_chunk.clear()
