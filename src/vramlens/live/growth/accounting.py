"""Accounts for all that grew before anybody says "no leak": what the counters hold, and what the
search reached.

Two sums must come out. What the allocator holds more than before must be in storages that the
search reached; and what it reached, by the step of its birth, must be in a pile that was judged.
What is left over, and came in at least three of four windows of the run, is growth that nobody was
found to hold.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import inf

from vramlens.live.counters.step_counters import CounterSeries
from vramlens.live.growth.births import BEFORE, Births
from vramlens.live.growth.looks import Looks
from vramlens.live.growth.pace import PAUSE, WARM_UP, pace_of
from vramlens.live.growth.piles import Item, bytes_by_birth
from vramlens.live.heap.search import Search
from vramlens.live.heap.tensors import Storage
from vramlens.live.leaks.leak_report import Gone, Unexplained
from vramlens.units import MIB

_WINDOWS, _FEWEST_WINDOWS = 4, 3
"""Windows of the run, and how many must have grown. With two of two a cache that fills by the middle
and one late allocation are a leak; with eight, a window of a run of 24 steps is one epoch of three.
"""
_FEWEST_READINGS = 16
"""Four a window: with two, one large batch decides a window; with eight, runs of 30 steps are never
accounted for.
"""
_LEAST_BYTES = MIB
"""Python's own objects and PyTorch's caches grow by hundreds of kibibytes without a tensor; with two, a
leak of 20 KiB a step would go unseen for 100 steps.
"""
_LEAST_SHARE = 0.25
"""Of what grew, that nobody holds: allocators round up, by less than an eighth; and of half one would
have to speak in any case.
"""
_WINDOW_SHARE = 0.25
"""Of its even part, that a window must have grown by. With an eighth a cache that slows down passes;
with half, growth by epochs that begin in uneven windows does not.
"""
_LATELY = 0.2
"""Of the steps, since the last reading, in which nothing was seen: with half as much a reading that was
left out would end it, with twice as much growth of the run's middle would be the end's.
"""
_MOST_UNSEEN = 0.5
"""Of the steps, of which there is no reading: more say nothing of what an early look found. Readings
that take long come at twice the distance each.
"""
_FEWEST_LATER = 16
"""Storages that came after the last step, to speak of growth: what is made once (a test set, a last batch's
results) is a few. With twice as many, the growth of 20 requests would be none.
"""
_NODE_BYTES = 1024
"""Of an autograd node with its saved variables, at most. With half, the nodes of a kept graph would be
growth that nobody holds; with twice as much, they would explain what is another's.
"""
_VIEW_BYTES = 512
"""Of a tensor that looks at another's storage: 520 bytes were measured (PyTorch 2.13), 880 with a graph.
With half, the rows of a batch that are kept one by one would be growth that nobody holds.
"""
_STORAGE_BYTES = 384
"""Of a small tensor beside its numbers, its storage included: 370 to 390 were measured. With half, a table
of scalars that fills up would be growth that nobody holds; with twice as much, it would explain another's.
"""
_HISTORY_BYTES = 2048
"""Of an event in PyTorch's memory history, at most: 240 bytes were measured at ten frames a stack (H100,
PyTorch 2.11), a frame takes 16, and the array may be twice as long as what is in it.
"""


@dataclass(frozen=True, slots=True)
class HostHeap:
    """What the C library's allocator had handed out.

    Attributes:
        series: by step.
        now: before the search; None where it does not say.
        step: the steps that have ended by now.
        history_events: what PyTorch's memory history holds, which is in the host's memory.
        sums: of the tensors that were alive after some of the steps, with these.
        tensors: how many look at each storage, as far as the search reached them: they are in the
            host's memory themselves.
    """

    series: CounterSeries
    now: int | None = None
    step: int = 0
    history_events: int = 0
    sums: Sequence[tuple[int, int]] = ()
    tensors: Mapping[Storage, int] = field(default_factory=dict)


def unexplained_growth(
    reached: Iterable[Storage],
    items: Sequence[Item],
    judged: Iterable[Storage | None],
    host: HostHeap | None,
    looks: Looks,
) -> Unexplained | None:
    """The growth that no judged pile explains; None where all is accounted for.

    Args:
        reached: all storages that the search came to.
        judged: storages of all piles that have a verdict, whichever.
        host: what the C library's allocator had handed out; None where the search is known to have
            reached a part of it alone.
        looks: at births.
    """
    known_owner = {storage for storage in judged if storage is not None}
    storages = {*reached, *known_owner}
    beside_search = None if host is None else _beside_search(storages, items, host)
    return beside_search or _beside_piles(items, known_owner, looks)


def growth_after_steps(
    items: Sequence[Item], steps: int, looks: Looks, sums: Sequence[tuple[int, int]]
) -> Unexplained | None:
    """What came when no step ended any more, if it is many storages and much of all there is; None
    else. A copy of what was there, as a checkpoint that is loaded again, has its sizes.

    Args:
        steps: how many have ended.
        looks: at births. What came since the newest of them may be of many steps, and have replaced
            other things.
        sums: steps and what was alive then of what the watch saw being born.
    """
    if steps - looks.latest >= _FEWEST_LATER and sums:
        alive_bytes = sum(item.size_bytes for item in items if item.storage and item.born)
        if alive_bytes - sums[-1][1] < _LEAST_BYTES:
            return None
    older, later = Counter[int](), Counter[int]()
    for item in items:
        if item.storage is not None:
            is_later = item.born is not None and item.born > steps
            (later if is_later else older)[item.size_bytes] += 1
    live_bytes = sum(size * count for size, count in (older + later).items())
    later -= older
    later_bytes = sum(size * count for size, count in later.items())
    least_bytes = max(_LEAST_BYTES, _LEAST_SHARE * live_bytes)
    if later.total() < _FEWEST_LATER or later_bytes < least_bytes:
        return None
    return Unexplained(later_bytes, 0, steps + 1, steps + 1, is_reached=True)


def gone_by_now(search: Search, items: Sequence[Item], host: HostHeap, steps: int) -> Gone | None:
    """The growth of the allocator's counter that nobody was found to hold, and that went after
    its last reading; None where there was none.
    """
    if host.now is None or not search.complete:
        return None
    grown = _beside_search(search.storages, items, replace(host, now=None))
    if grown is None or steps - grown.last_step > _MOST_UNSEEN * steps:
        return None
    return Gone(grown.bytes_per_step, grown.last_step, "")


def grew_lately(gone: Gone, steps: int) -> bool:
    """Whether growth that is gone was seen in one of the last steps."""
    return steps - gone.step <= _LATELY * steps


def gone_growth(items: Iterable[Item], births: Births) -> Gone | None:
    """The growth that was steady when bytes were summed last, if not even half as much is alive now,
    of whatever step: a ring gives up what is old for what is new.
    """
    step, bytes_by_step = births.latest_sum
    pace = pace_of(bytes_by_step, step, births.looks)
    if pace is None or not pace.is_steady or not births.is_summed:
        return None
    alive_bytes = sum(item.size_bytes for item in items if item.born != BEFORE)
    is_gone = 2 * alive_bytes < sum(bytes_by_step.values())
    return Gone(pace.bytes_per_step, step, "") if is_gone else None


def _beside_search(
    storages: Iterable[Storage], items: Sequence[Item], host: HostHeap
) -> Unexplained | None:
    """Growth of the allocator's counter that the reached storages do not explain."""
    readings = _readings_of(host)
    if not readings:
        return None
    floors = list(accumulate((value for _, value in reversed(readings)), min))[::-1]
    first, last = readings[0][0], readings[-1][0]
    bounds = [first + part * (last - first) / _WINDOWS for part in range(_WINDOWS + 1)]
    steps = [step for step, _ in readings]
    values = [floors[bisect_right(steps, bound) - 1] for bound in bounds]
    if not _is_in_most_windows([after - before for before, after in pairwise(values)]):
        return None
    grown = floors[-1] - floors[0]
    history_bytes = _HISTORY_BYTES * host.history_events
    explained = _explained_bytes(storages, items, first, host.tensors)
    left_over = grown - history_bytes - explained
    if left_over < max(_LEAST_BYTES, _LEAST_SHARE * grown):
        return None
    if _since_middle(readings, floors, host.sums, items) < _WINDOW_SHARE * left_over:
        return None
    last = _grown_until(steps, floors)
    return Unexplained(left_over, round(left_over / (last - first)), first, last, is_reached=False)


def _grown_until(steps: Sequence[int], floors: Sequence[int]) -> int:
    """The last reading; where growth has paused before it for longer than it ever did, the step at
    which it stopped.
    """
    little = _WINDOW_SHARE * (floors[-1] - floors[0]) / _WINDOWS
    stopped = bisect_left(floors, floors[-1] - little)
    longest_pause = max(
        steps[bisect_right(floors, floor + little) - 1] - step
        for step, floor in zip(steps[:stopped], floors, strict=False)
    )
    has_stopped = steps[-1] - steps[stopped] > PAUSE * longest_pause
    return steps[stopped] if has_stopped else steps[-1]


def _since_middle(
    readings: Sequence[tuple[int, int]],
    floors: Sequence[int],
    sums: Sequence[tuple[int, int]],
    items: Iterable[Item],
) -> float:
    """The growth that no storage explains since the sum of live tensors nearest to the middle of the
    run; infinite where none was taken. What PyTorch keeps for the shapes of the first steps is older,
    and a cache that fills meanwhile hides it in the totals.
    """
    (first, _), (last, _) = readings[0], readings[-1]
    quarter = (last - first) / _WINDOWS
    in_middle = [taken for taken in sums if first + quarter <= taken[0] <= last - quarter]
    if not in_middle:
        return inf
    step, alive_then = min(in_middle, key=lambda taken: abs(2 * taken[0] - first - last))
    place = bisect_right([reading for reading, _ in readings], step) - 1
    sizes = {item.storage: item.size_bytes for item in items if item.storage and item.born}
    return floors[-1] - floors[place] - (sum(sizes.values()) - alive_then)


def _readings_of(host: HostHeap) -> list[tuple[int, int]]:
    """Steps and what was handed out, without the first: caches and workspaces that the first
    passes make; empty where there are too few.
    """
    by_step = zip(host.series.steps, host.series.values, strict=True)
    readings = [(step, value) for step, value in by_step if step > WARM_UP]
    if len(readings) < _FEWEST_READINGS:
        return []
    if host.now is not None:
        # What is gone by now has not grown.
        readings.append((max(host.step, readings[-1][0]), host.now))
    return readings[len(readings) // 8 :]


def tensors_by_storage(search: Search) -> Counter[Storage]:
    """How many tensors look at each storage, as far as they were reached."""
    return Counter(search.storage_at.values())


def view_bytes(storages: Iterable[Storage], tensors: Mapping[Storage, int]) -> int:
    """The host's bytes in the tensors themselves that look at storages, beside one at each."""
    return _VIEW_BYTES * sum(max(tensors.get(storage, 1) - 1, 0) for storage in storages)


def _explained_bytes(
    storages: Iterable[Storage], items: Sequence[Item], step: int, tensors: Mapping[Storage, int]
) -> int:
    """The host's bytes in storages, tensors and autograd nodes that may be younger than a step."""
    born = {item.storage: item.born for item in items if item.storage is not None}
    younger = [storage for storage in storages if _is_younger(born.get(storage), step)]
    in_storages = sum(storage.size_bytes for storage in younger if storage.device == "cpu")
    nodes = (item for item in items if item.storage is None)
    younger_nodes = sum(_is_younger(node.born, step) for node in nodes)
    return in_storages + _bytes_beside(younger, younger_nodes, tensors)


def host_bytes_beside(items: Iterable[Item], tensors: Mapping[Storage, int]) -> int:
    """The host's bytes in the tensors and autograd nodes themselves, beside what storages hold."""
    storages = [item.storage for item in items]
    in_graph = storages.count(None)
    return _bytes_beside(list(filter(None, storages)), in_graph, tensors)


def _bytes_beside(storages: Collection[Storage], nodes: int, tensors: Mapping[Storage, int]) -> int:
    on_host = sum(storage.device == "cpu" for storage in storages)
    in_tensors = _STORAGE_BYTES * on_host + view_bytes(storages, tensors)
    return in_tensors + _NODE_BYTES * nodes


def _is_younger(born: int | None, step: int) -> bool:
    return born is None or born > step


def _is_in_most_windows(rises: Sequence[int]) -> bool:
    """Whether enough came, and its share in at least three of four windows."""
    total = sum(rises)
    least_rise = _WINDOW_SHARE * total / _WINDOWS
    high_rises = sum(rise > least_rise for rise in rises)
    return total >= _LEAST_BYTES and high_rises >= _FEWEST_WINDOWS


def _beside_piles(items: Iterable[Item], judged: set[Storage], looks: Looks) -> Unexplained | None:
    """Growth of reached storages that belong to no pile: many owners, each of which grows now
    and then.
    """
    bytes_by_step = bytes_by_birth(
        item for item in items if item.storage is not None and item.storage not in judged
    )
    steps = looks.latest  # births of later steps are not told apart
    pace = pace_of(bytes_by_step, steps, looks)
    if pace is None or not pace.is_sure:
        return None
    windows = [0] * _WINDOWS
    for step, size in bytes_by_step.items():
        if WARM_UP < step < steps:
            windows[(step - WARM_UP - 1) * _WINDOWS // (steps - 1 - WARM_UP)] += size
    if not _is_in_most_windows(windows):
        return None
    return Unexplained(sum(windows), pace.bytes_per_step, pace.first, pace.last, is_reached=True)
