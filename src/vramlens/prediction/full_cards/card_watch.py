"""The first request of a predicted program that a card has no room for, noticed while the program
runs: later nobody can tell what the program held.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from vramlens.capture.failure_facts.batch_tables import batch_numbers
from vramlens.capture.failure_facts.failed_expression import failed_expression, failed_node
from vramlens.capture.failure_facts.idle_checkpointing import idle_checkpointing
from vramlens.capture.failure_facts.ignored_labels import ignored_labels
from vramlens.capture.failure_facts.padded_batch import padded_batch
from vramlens.capture.failure_facts.row_lengths import row_lengths
from vramlens.capture.names.tensor_names import named_tensors
from vramlens.capture.process.undisturbed import no_collection
from vramlens.capture.triggers.out_of_memory import RefusedRequest
from vramlens.ground.program_errors import own_errors
from vramlens.prediction.full_cards.predicted_heap import KnownHeap, NamedHeap
from vramlens.prediction.requests.request_log import RequestLog
from vramlens.prediction.tensors.known_values import KnownValues

_SEARCH_SECONDS = 10.0
"""Of the processor's time, for who holds tensors that no model has: a prediction may take that long."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the allocator may reserve.

    Attributes:
        total_bytes: the card's memory, or the program's own limit.
        free_bytes: what is left of it beside the CUDA context and libraries.
        is_own_limit: whether the program has set it (``set_per_process_memory_fraction``).
    """

    total_bytes: int
    free_bytes: int
    is_own_limit: bool = False


@dataclass(frozen=True, slots=True)
class FullCard:
    """A room at the first request that is too much for it.

    Attributes:
        room: what is full.
        row: of the request, in the log.
        request: what a recording says of it.
        tensors: the live tensors as ``names.json`` has them, with their rows, counted from 1, in place of
            addresses.
    """

    room: Room
    row: int
    request: RefusedRequest
    tensors: list[dict[str, Any]]

    @classmethod
    def unseen(cls, room: Room, log: RequestLog) -> FullCard:
        """One of which nothing was noted when it became full."""
        row = len(log.sizes) - 1
        request = RefusedRequest(device=0, requested_bytes=log.sizes[row], device_free_bytes=0)
        return cls(room, row, request, [])


class CardWatch:
    """Watches for the request that is too much for each of some rooms.

    The allocator gives back what it has cached before it fails a request, so a card is full when
    what is alive does not fit. Gaps between live blocks may fail an earlier one.

    Attributes:
        full_cards: those that became full, the smallest first.
        own_limit: that the program has set last; None where it has set none, or lifted it.
        is_limited_late: whether more than that had been in use when it was set.
    """

    def __init__(
        self,
        log: RequestLog,
        values: KnownValues,
        rooms: Iterable[Room],
        *,
        card_bytes: int,
        root_names: Mapping[int, str],
    ) -> None:
        """Begins to watch.

        Args:
            log: the program's requests.
            values: of its tensors.
            rooms: of cards.
            card_bytes: the predicted card's memory.
            root_names: names of modules by ``id``.
        """
        self.full_cards: list[FullCard] = []
        self._log, self._values = log, values
        self._card_bytes, self._root_names = card_bytes, root_names
        self.own_limit: Room | None = None
        self.is_limited_late = False
        self._waiting: list[Room] = []
        log.limit_reached = self._limit_reached
        self._watch(rooms)

    def limit_itself(self, limit_bytes: int) -> None:
        """The program limits itself to so many bytes, or lifts its limit (all of the card's). What it had in use
        before is no failure, and then nobody can tell whether the rest fits.
        """
        rooms = [room for room in self._waiting if not room.is_own_limit]
        is_lifted = limit_bytes >= self._card_bytes
        self.own_limit = None if is_lifted else Room(limit_bytes, limit_bytes, is_own_limit=True)
        self.is_limited_late = self._log.peak_bytes > limit_bytes
        if self.own_limit is not None and not self.is_limited_late:
            rooms.append(self.own_limit)
        self._watch(rooms)

    def _watch(self, rooms: Iterable[Room]) -> None:
        self._waiting = sorted(rooms, key=lambda room: room.free_bytes)
        self._log.limit_bytes = self._waiting[0].free_bytes if self._waiting else math.inf

    def _limit_reached(self, row: int) -> None:
        in_use = self._log.allocated_bytes
        full_rooms = [room for room in self._waiting if room.free_bytes < in_use]
        self._watch(room for room in self._waiting if room.free_bytes >= in_use)
        # An error costs the advice, and the program hears of nothing. A collection is its own to begin.
        with own_errors(), no_collection():
            self.full_cards += map(self._full_card(row), full_rooms)

    def _full_card(self, row: int) -> Callable[[Room], FullCard]:
        """What the program holds at a request that is too much for some room."""
        tensors = named_tensors(
            root_names=self._root_names,
            search_seconds=_SEARCH_SECONDS,
            with_garbage=True,
            heap_class=partial(NamedHeap, self._log),
        )
        return partial(
            FullCard,
            row=row,
            request=self._request(row),
            tensors=[tensor.to_dict() for tensor in tensors],
        )

    def _request(self, row: int) -> RefusedRequest:
        batch = batch_numbers("cuda", ctypes.string_at, partial(KnownHeap, self._log, self._values))
        return RefusedRequest(
            device=0,
            requested_bytes=self._log.sizes[row],
            device_free_bytes=0,
            expression=failed_expression(),
            node=failed_node(),
            padded_batch=padded_batch(batch.tables),
            ignored_labels=ignored_labels(batch.tables),
            row_lengths=row_lengths(batch),
            idle_checkpointing=idle_checkpointing(),
        )
