"""Bounds of a container that grows: its own length, its table's limit, a check before it evicts."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any

from vramlens.ground.program_errors import own_errors
from vramlens.ground.verdict import Verdict
from vramlens.live.heap.objects import (
    QUEUES,
    attributes_of,
    class_module,
    class_name,
    dict_items,
    is_kind,
    length_of,
)
from vramlens.live.heap.tees import entries_of, is_tee
from vramlens.live.holder.keeper import Keeper, store_of
from vramlens.live.source.bounds import length_limit, never_holds
from vramlens.live.source.counted_bounds import CountedBound, meter_of_removal, meter_of_store
from vramlens.live.source.source_stores import Store
from vramlens.live.source.statement_scores import is_removal
from vramlens.units import GIB, counted, format_size

_MOST_TO_COME = GIB
_MOST_ASKED = 16
"""Of a table's entries, whether they hold their keys: all are made by one statement."""
Excuse = tuple[Verdict, str]
"""The verdict that growth is lowered to, and why."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What is known of something that grows.

    Attributes:
        container: the object that keeps.
        keeper: the statement that fills it; None where it is not known.
        holder: the object whose attribute the container is; None where it is none.
        is_graph: whether autograd graphs are kept.
        is_remade: whether it is one tensor that is made anew, larger, in each step.
        is_linked: whether it is the head of objects that each hold the one before.
        kept_bytes: what it keeps now.
        is_backlog: whether its oldest went, and it still grew.
        is_rising: whether the sums of live bytes, or a counter, rose each time by what it left.
        is_turning: whether as much goes as comes: it may be full.
        steps: how many left something.
        span: steps from the first that left something to the last.
        kept_steps: how many steps it took until all entries were there, those from before the watch
            included; at least ``span``.
        whole_steps: the steps that left something, where all of it is there; 0 elsewhere.
        is_parameter_state: whether it is what training makes once for each parameter.
        is_in_use: whether its older entries are still written to.
        late_share: of the bytes that it keeps, those from the second half of its steps.
        young_entries: how many of its entries hold something that was born while it was watched.
        is_of_views: whether it keeps views that need little of their storages.
    """

    container: Any
    keeper: Keeper | None
    holder: object
    is_graph: bool = False
    is_remade: bool = False
    is_linked: bool = False
    kept_bytes: int = 0
    is_backlog: bool = False
    is_rising: bool = False
    is_turning: bool = False
    steps: int = 0
    span: int = 0
    kept_steps: int = 0
    whole_steps: int = 0
    is_parameter_state: bool = False
    is_in_use: bool = False
    late_share: float = 0.5
    young_entries: int = 0
    is_of_views: bool = False

    @property
    def store(self) -> Store | None:
        """The source of the statement that fills it."""
        return store_of(self.keeper)


def distant_bound(growth: Growth) -> str:
    """The bytes that a bound still lets come, where they are too many for an excuse; empty
    elsewhere.
    """
    limit = _source_limit(growth)
    if limit is None:
        limit = _maximal_length(growth.container)
    length = length_of(growth.container)
    if not length:
        return ""
    if limit is not None:
        to_come = max(limit - length, 0) * growth.kept_bytes // length
        bound = f"bounded at {limit:,}"
    else:
        metered = metered_bound(growth)
        if metered is None:
            return ""
        statement, meter = metered
        to_come = meter.bytes_to_come(growth.kept_bytes, length)
        bound = f"bounded by {meter.condition} (line {statement.line})"
    return f"{bound}: {format_size(to_come)} to come" if to_come > _MOST_TO_COME else ""


def metered_bound(growth: Growth) -> tuple[Store, CountedBound] | None:
    """The statement that is held back, or takes entries away, at the limit of what the program
    counts beside; with what it counts. None without one.
    """
    store, holder = growth.store, growth.holder
    if growth.keeper is None or store is None:
        return None
    meter = meter_of_store(store, holder)
    if meter is not None:
        return store, meter
    for other in growth.keeper.others:
        if is_removal(other) and not never_holds(other.guards, store, holder):
            meter = meter_of_removal(other, store, holder)
            length = length_of(growth.container) or 0
            if meter is not None and meter.is_of(growth.kept_bytes, length):
                return other, meter
    return None


def eviction_limit(removal: Store, growth: Growth) -> int | None:
    """The length above which a statement takes things away: ``if len(x) > n: x.pop(...)``."""
    if growth.store is None or not is_removal(removal):
        return None
    limit = length_limit(removal.guards, growth.store, growth.holder)
    # What is twice as long as it may be was not evicted: another part of the condition is off.
    if limit is not None and (length_of(growth.container) or 0) > 2 * limit + 1:
        return None
    return limit


def container_excuse(growth: Growth) -> Excuse | None:
    """The reason in the container itself why it ends growing; None without one."""
    container = growth.container
    kind = class_name(type(container))
    if growth.is_parameter_state:
        reason = "training makes it once for each parameter, and no parameters were added"
        return Verdict.NOT_A_PROBLEM, reason
    if is_tee(container):
        return _tee_excuse(container)
    if class_module(type(container)) in QUEUES:
        size = _queue_size(container)
        if size:
            return Verdict.NOT_A_PROBLEM, f"a queue that never holds more than {size:,}"
    longest = _maximal_length(container)
    if longest is not None:
        return Verdict.NOT_A_PROBLEM, f"a deque that never holds more than {longest:,}"
    if kind == "_lru_cache_wrapper":
        with own_errors():
            return _cache_excuse(container)
    if _has_empty_places(container) and (growth.store is None or growth.store.how == "item"):
        reason = "a list that was created at full length and still has empty places"
        return Verdict.NOT_A_PROBLEM, reason
    if kind in ("LRUCache", "TTLCache", "LFUCache"):
        return Verdict.POSSIBLE, "a cache with a limit"
    if is_kind(container, weakref.WeakKeyDictionary) and not _holds_its_keys(container):
        return Verdict.POSSIBLE, "an entry goes when its key does: what holds the keys grows"
    return None


def _holds_its_keys(table: Any) -> bool:
    """Whether the values of a WeakKeyDictionary hold the keys."""
    entries = islice(dict_items(dict(attributes_of(table)).get("data")), _MOST_ASKED)
    return any(_holds(value, reference()) for reference, value in entries)


def _holds(value: object, key: object) -> bool:
    """Whether an object holds another, by itself or by its attributes."""
    attributes = [part for _, part in attributes_of(value)]
    return any(part is key for part in (*attributes, *gc.get_referents(value, *attributes)))


def _tee_excuse(tee: object) -> Excuse | None:
    """The excuse of a half that keeps what it has read itself: a block stays whole."""
    kept_entries, unread = entries_of(tee)
    if 2 * unread >= kept_entries:
        return None
    return Verdict.NOT_A_PROBLEM, "itertools.tee lets go of what was read 57 entries at a time"


def _source_limit(growth: Growth) -> int | None:
    """The length at which what grows is held back or evicted, by the source."""
    if growth.keeper is None or growth.store is None:
        return None
    limit = length_limit(growth.store.guards, growth.store, growth.holder)
    if limit is not None:
        return limit
    limits = (eviction_limit(other, growth) for other in growth.keeper.others)
    return next((limit for limit in limits if limit is not None), None)


def _maximal_length(container: object) -> int | None:
    return deque.maxlen.__get__(container) if is_kind(container, deque) else None


def _queue_size(queue: Any) -> int:
    """The most that a queue holds; 0 for one without a limit."""
    for name, size in attributes_of(queue):
        if name.lstrip("_") == "maxsize" and type(size) is int and size > 0:
            return size
    return 0


def _cache_excuse(cache: Any) -> Excuse | None:
    """The excuse of an ``lru_cache``: its limit, and whether it is full or hit."""
    facts = type(cache).cache_info(cache)
    if facts.maxsize is None:
        return None
    limit = f"a cache of at most {facts.maxsize:,}"
    if facts.currsize >= facts.maxsize:
        return Verdict.NOT_A_PROBLEM, f"{limit}, and it is full"
    if facts.hits:
        return Verdict.NOT_A_PROBLEM, f"{limit}, and it is hit: {counted(facts.hits, 'time')}"
    return Verdict.POSSIBLE, f"{limit}; none of its {facts.currsize:,} results was used again"


def _has_empty_places(container: Any) -> bool:
    return is_kind(container, list) and any(part is None for part in list.__iter__(container))
