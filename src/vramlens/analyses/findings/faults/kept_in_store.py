"""Stores that keep something of each turn: lists of outputs, states of metrics, calls that have ended.

Where the process named its tensors, one name with many numbers says who keeps them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.names import Names
from vramlens.analyses.extent import Extent
from vramlens.analyses.finding import Finding
from vramlens.analyses.findings.usage import part_of_heap
from vramlens.analyses.scene import Scene
from vramlens.ground.place import Place
from vramlens.ground.verdict import Verdict
from vramlens.trace import NO_STACK, TensorKind
from vramlens.units import counted, format_size

_ENTRY = re.compile(r"^(?P<store>[^\[\]()]+(?:\.[^\[\]()]+)*)\[(?:\d{1,9}|'[^']*')\](?P<part>\S*)$")
"""``model.ap.target[3]``, ``Buffer.rows['a'].x``: one entry of a list or dict that somebody holds."""
_NOBODYS = ("list", "tuple", "dict", "set", "deque", "OrderedDict", "defaultdict", "?")
"""Names of containers that nobody is known to hold: one of them is not another."""
_LOCAL = re.compile(r"^local of (?P<call>[\w.<>]+\(\))$")
_METRIC = re.compile(r"[/\\]torchmetrics[/\\]")
_FEWEST_ENTRIES = 8
"""Fewer are the layers of a model, or what a step has at once."""
_LEAST_SHARE = 0.25
_LIKELY_CALLS = 6
"""Calls of one function beside those that run: fewer may be those of other threads."""


@dataclass(frozen=True, slots=True)
class _Store:
    """What one name with many numbers leads to.

    Attributes:
        name: of the store, or of the function whose calls keep it.
        rows: the allocations.
        size_bytes: of all of them.
        is_of_calls: whether they are variables of calls.
    """

    name: str
    rows: NDArray[np.int64]
    size_bytes: int
    is_of_calls: bool = False


def kept_in_store(scene: Scene) -> Iterator[Finding]:
    """The store that keeps the most when memory runs out, if that is much of all."""
    if not scene.is_ended_by_failure:
        return
    rows = scene.device.allocations.alive_after(scene.advice_event)
    stores = [*_calls(scene, rows), *_stores(scene, rows)]
    largest = max(stores, key=lambda store: store.size_bytes, default=None)
    heap = scene.advice_heap
    if largest is None or largest.size_bytes < _LEAST_SHARE * heap.requested_bytes:
        return
    share = part_of_heap(largest.size_bytes, heap)
    yield (
        _of_calls(scene, largest, share)
        if largest.is_of_calls
        else _of_store(scene, largest, share)
    )


def _of_store(scene: Scene, store: _Store, share: str) -> Finding:
    is_metric = _is_metrics(scene, store.rows)
    fix = (
        f"keep what {store.name} collects on the CPU (`.detach().cpu()`), or only a sum of it: it"
        f" grows with every turn (up to {format_size(store.size_bytes)} less)"
    )
    if is_metric:
        fix = (
            "give the metric a state of fixed size (thresholds=200 where it has them), or"
            f" compute_on_cpu=True: it grows with every batch (up to"
            f" {format_size(store.size_bytes)} less)"
        )
    return Finding(
        id="kept_in_store",
        verdict=Verdict.LIKELY if is_metric else Verdict.POSSIBLE,
        title=f"{counted(len(store.rows), 'tensor')} in {store.name} hold {share}",
        bytes=store.size_bytes,
        place=_place(scene, store.rows),
        evidence=(
            ("a metric of torchmetrics that keeps all predictions and targets",)
            if is_metric
            else ()
        ),
        fix=fix,
        extent=Extent(scene.advice_event, store.rows),
    )


def _of_calls(scene: Scene, store: _Store, share: str) -> Finding:
    calls = _most_at_one_line(scene, store.rows)
    running = _calls_running(scene, store.name)
    is_sure = calls - running >= _LIKELY_CALLS
    return Finding(
        id="kept_in_store",
        verdict=Verdict.LIKELY if is_sure else Verdict.POSSIBLE,
        title=f"variables of {store.name} hold {share}, of {counted(calls, 'call')} at least:"
        f" {running:,} of them runs where the request failed",
        bytes=store.size_bytes,
        place=_place(scene, store.rows),
        evidence=(
            "an exception that is kept keeps the variables of all calls that it passed through"
            " (its traceback); so does a generator that is not at its end",
        ),
        fix="keep str(error), or error.with_traceback(None), instead of the exception"
        f" (up to {format_size(store.size_bytes)} less)",
        extent=Extent(scene.advice_event, store.rows),
    )


def _stores(scene: Scene, rows: NDArray[np.int64]) -> Iterator[_Store]:
    """Yields what holds many entries: one list or dict, or several of one object."""
    by_owner: defaultdict[str, list[int]] = defaultdict(list)
    by_store: defaultdict[str, list[int]] = defaultdict(list)
    for row in _others(scene.view.names, rows):
        entry = _ENTRY.match(scene.view.names.name(row))
        if entry is not None and entry["store"] not in _NOBODYS:
            by_store[entry["store"]].append(row)
    for store, store_rows in by_store.items():
        if len(store_rows) >= _FEWEST_ENTRIES:
            owner, _, attribute = store.rpartition(".")
            by_owner[owner if owner and attribute else store] += store_rows
            yield _store(scene, store, store_rows)
    for owner, owner_rows in by_owner.items():
        yield _store(scene, owner, owner_rows)


def _calls(scene: Scene, rows: NDArray[np.int64]) -> Iterator[_Store]:
    """Yields the functions of whose calls many keep their variables."""
    by_call: defaultdict[str, list[int]] = defaultdict(list)
    for row in _others(scene.view.names, rows):
        local = _LOCAL.match(scene.view.names.name(row))
        if local is not None:
            by_call[local["call"]].append(row)
    for call, call_rows in by_call.items():
        store = _store(scene, call, call_rows, is_of_calls=True)
        if _most_at_one_line(scene, store.rows) >= _calls_running(scene, call) + 2:
            yield store


def _store(scene: Scene, name: str, rows: list[int], *, is_of_calls: bool = False) -> _Store:
    every = np.array(sorted(set(rows)), np.int64)
    size_bytes = int(scene.device.allocations.requested_bytes[every].sum())
    return _Store(name, every, size_bytes, is_of_calls)


def _others(names: Names, rows: NDArray[np.int64]) -> Iterator[int]:
    """Yields the allocations that are named, and no parameter, gradient or state."""
    if names.table is not None:
        for row in rows[names.row[rows] >= 0].tolist():
            if names.table.kind[names.row[row]] == TensorKind.TENSOR:
                yield row


def _most_at_one_line(scene: Scene, rows: NDArray[np.int64]) -> int:
    """How many of these one line made, at most: each call makes some there."""
    _, counts = np.unique(scene.view.phases.frame[rows], return_counts=True)
    return int(counts.max(initial=0))


def _calls_running(scene: Scene, call: str) -> int:
    """How often a function is on the stack of the failed request."""
    if scene.failure is None:
        return 0
    name = call.removesuffix("()").rpartition(".")[2]
    frames = scene.trace.stacks.of(scene.failure.request.stack)
    return sum(frame.function == name for frame in frames)


def _is_metrics(scene: Scene, rows: NDArray[np.int64]) -> bool:
    """Whether a metric of torchmetrics asked for some of them."""
    stack = scene.device.allocations.stack[rows]
    return bool(scene.trace.stacks.within(_METRIC, stack[stack != NO_STACK]).any())


def _place(scene: Scene, rows: NDArray[np.int64]) -> Place | None:
    """The line that made the newest of them."""
    return scene.view.place_of_stack(int(scene.device.allocations.stack[rows[-1]]))
