"""A prediction's requests, served by the replayed allocator: what is reserved, and a snapshot
like PyTorch's own.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from vramlens._native import Replay
from vramlens.errors import InputError
from vramlens.prediction.requests.compiled_requests import as_compiled
from vramlens.prediction.requests.late_completions import with_late_completions
from vramlens.prediction.requests.other_draws import with_other_draws
from vramlens.prediction.requests.request_log import (
    ALLOCATE,
    COMPLETE,
    EMPTY_CACHE,
    FIRST_POOL,
    FREE,
    RequestLog,
)
from vramlens.prediction.requests.served_snapshot import snapshot_of
from vramlens.prediction.requests.skipped_step import with_skipped_step
from vramlens.replay.settings import parse_settings
from vramlens.replay.versions import version_named
from vramlens.trace import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ORDERS = (0, 1, 2)  # native/replay_addresses.h
_RECORDED = 0  # native/replay.h: Completion
_DRAWS = 4
_HISTORIES = 8
_LATER_SHARE, _MOST_EVENTS_LATER = 0.1, 2
"""Of the frees that come later, and by how many events at most."""
_WORTH_SAYING = 0.01
"""Of the peak: less is within what a prediction is off by anyway."""
_FIRST_ADDRESS = 1 << 46


@dataclass(frozen=True, slots=True)
class Within:
    """What becomes of requests within the bytes that a card leaves for them.

    A full card fails no request at once: the allocator gives back what it has cached, and asks
    again.

    Attributes:
        lives: whether all are served; None where that depends on what is not known.
        retries: how often the cache was given back for it (``num_alloc_retries``), at the likeliest
            sizes and addresses.
    """

    lives: bool | None
    retries: int


@dataclass(frozen=True, slots=True)
class ServedRequests:
    """What requests lead to.

    Attributes:
        peaks: requested_bytes, allocated_bytes, active_bytes and reserved_bytes at their most.
        low_bytes, high_bytes: peak reserved without a limit, over the places where the driver may
            put segments, with tensors that go a little later, and with sizes that are not sure at
            their least and most.
        floor_bytes: peak requested, with such sizes at their least.
        sure_bytes: peak requested without what made-up numbers decided; None where that is as good
            as all.
        within: what becomes of them within each number of bytes that was asked for.
        is_limited: whether ``peaks`` are those on a full card.
        snapshot: as ``torch.cuda.memory._snapshot`` gives it.
    """

    peaks: dict[str, int]
    low_bytes: int
    high_bytes: int
    floor_bytes: int
    sure_bytes: int | None
    within: dict[int, Within]
    is_limited: bool
    snapshot: dict[str, Any]


def serve(
    log: RequestLog,
    conf: str,
    torch_version: str,
    *,
    card_bytes: int,
    limits: Sequence[int] = (),
) -> ServedRequests:
    """Serves a program's requests under a setting, by the rules of a version.

    Args:
        card_bytes: what the card leaves for the allocator.
        limits: other such bytes, to be told what becomes of the program within them.

    Raises:
        InputError: there are none: the program used no GPU.
        SettingsError: PyTorch would refuse the setting.
    """
    if not log.sizes:
        raise InputError("the program requested no GPU memory: nothing moved to cuda")
    version = version_named(torch_version)
    settings = parse_settings(conf, version)
    eager, log = log, as_compiled(log)
    native = settings.native(version)
    columns, row_of_event = columns_of(log)
    likeliest = _replay_of(columns, native)
    variants = itertools.chain(
        ((likeliest, order) for order in _ORDERS),
        ((_replay_of(columns_of(other)[0], native), _ORDERS[0]) for other in _others(eager, log)),
    )
    fates: dict[int, list[dict[str, Any]]] = {limit: [] for limit in (card_bytes, *limits)}
    runs = []
    for replay, order in variants:
        run = _run(replay, native, order)
        runs.append(run)
        for limit, fates_within in fates.items():
            is_met = run["peak_reserved"] > limit
            fates_within.append(
                _run(replay, native | {"capacity": limit}, order) if is_met else run
            )
    within = {limit: _judged(fates_within) for limit, fates_within in fates.items()}
    is_limited = runs[0]["peak_reserved"] > card_bytes and within[card_bytes].lives is True
    limited = native | ({"capacity": card_bytes} if is_limited else {})
    outcome, events = likeliest.log(limited, addresses=_ORDERS[0], completion=_RECORDED, seed=0)
    kinds = ("requested", "allocated", "active", "reserved")
    reserved = [run["peak_reserved"] for run in runs]
    return ServedRequests(
        peaks={f"{kind}_bytes": outcome[f"peak_{kind}"] for kind in kinds},
        low_bytes=min(reserved),
        high_bytes=max(reserved),
        floor_bytes=min(run["peak_requested"] for run in runs),
        sure_bytes=_sure_bytes(log),
        within=within,
        is_limited=is_limited,
        snapshot=snapshot_of(log, row_of_event, events, settings),
    )


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A request that the allocator refuses, and its state then.

    Attributes:
        row: of the request.
        snapshot: after the allocator has given back what it had cached, as
            ``torch.cuda.memory._snapshot`` gives it.
        addresses: of the rows before it.
    """

    row: int
    snapshot: dict[str, Any]
    addresses: dict[int, int]


def first_refused(
    log: RequestLog, row: int, conf: str, torch_version: str, room_bytes: int
) -> RefusedRow | None:
    """The first request that the allocator refuses within some bytes; None where it serves all.

    Args:
        log: all of a program's requests.
        row: the last one to serve. What is alive may be enough until then, and gaps have one before it
            refused.
        conf, torch_version: the allocator's settings and rules.
        room_bytes: what the allocator may reserve.
    """
    version = version_named(torch_version)
    settings = parse_settings(conf, version)
    native = settings.native(version) | {"capacity": room_bytes}
    served = as_compiled(log.first_rows(row + 1))
    columns, row_of_event = columns_of(served)
    outcome, events = _replay_of(columns, native).log(
        native, addresses=_ORDERS[0], completion=_RECORDED, seed=0
    )
    if outcome["died_at"] < 0:
        return None
    is_request = events["log_action"] == Action.ALLOC
    rows = row_of_event[events["log_event"][is_request]].tolist()
    addresses = dict(zip(rows, events["log_address"][is_request].tolist(), strict=True))
    snapshot = snapshot_of(served, row_of_event, events, settings)
    return RefusedRow(int(row_of_event[outcome["died_at"]]), snapshot, addresses)


def _others(eager: RequestLog, log: RequestLog) -> Iterator[RequestLog]:
    """The requests as they may come, too."""
    if log.bounds:
        yield from _with_other_sizes(eager)
    if log.undecided.rows:
        yield log.without_undecided()
        yield _at_their_least(eager).without_undecided()
    yield from with_other_draws(eager)
    yield from with_skipped_step(log)
    yield from with_late_completions(log)
    yield from with_shifted_frees(log)


def _sure_bytes(log: RequestLog) -> int | None:
    """The most bytes alive at once without what made-up numbers decided; None where that is as good
    as all of them.
    """
    if not log.undecided.rows:
        return None
    sure_bytes, all_bytes = _peak_requested(log.without_undecided()), _peak_requested(log)
    return sure_bytes if sure_bytes < (1 - _WORTH_SAYING) * all_bytes else None


def _peak_requested(log: RequestLog) -> int:
    kinds, rows = np.array(log.kinds), np.array(log.rows)
    sizes = np.array(log.sizes, np.int64)[rows]
    return int(np.select([kinds == ALLOCATE, kinds == FREE], [sizes, -sizes]).cumsum().max())


def _judged(fates: Sequence[dict[str, Any]]) -> Within:
    """What all variants say together. A workspace that is refused decides nothing: the library
    takes a smaller one.
    """
    verdicts = {
        False if fate["died_at"] >= 0 else None if fate["new_failures"] else True for fate in fates
    }
    return Within(verdicts.pop() if len(verdicts) == 1 else None, fates[0]["retries"])


def _with_other_sizes(log: RequestLog) -> Iterator[RequestLog]:
    """The requests with sizes that are not sure at their least and at their most, then some with
    each drawn: cached blocks of several sizes may take more than the largest sizes do.
    """
    yield _at_their_least(log)
    yield log.with_sizes(lambda size, least, most: most)
    for seed in range(_DRAWS):
        yield _with_drawn_sizes(log, seed)


def _at_their_least(log: RequestLog) -> RequestLog:
    return log.with_sizes(lambda size, least, most: least)


def _with_drawn_sizes(log: RequestLog, seed: int) -> RequestLog:
    """The requests with sizes that are not sure drawn from what they may be.

    Operators of one shape take one algorithm: equal bounds are drawn once.
    """
    draws = random.Random(seed)

    @cache
    def draw(size: int, least: int, most: int) -> int:
        return draws.choice((size, least, most))

    return log.with_sizes(draw)


def with_shifted_frees(log: RequestLog) -> Iterator[RequestLog]:
    """The requests with a tenth of the frees up to two events later, several times.

    When a tensor goes is decided by the last that holds it: a frame of Python, a node of autograd,
    a temporary of C++. These let go within an operator or two of each other, and versions of
    PyTorch and of libraries differ in the order. The bytes that are alive hardly change, but which
    cached block serves the next request may, and with it what is reserved.
    """
    kinds, rows = np.array(log.kinds), np.array(log.rows)
    places = np.arange(len(kinds), dtype=np.float64)
    emptied = np.append(np.flatnonzero(kinds == EMPTY_CACHE), len(kinds))
    next_emptied = emptied[np.searchsorted(emptied, places)]
    for seed in range(_HISTORIES):
        draws = np.random.default_rng(seed)
        is_later = (kinds == FREE) & (draws.random(len(kinds)) < _LATER_SHARE)
        later = places + draws.integers(1, _MOST_EVENTS_LATER + 1, len(kinds)) + 0.5
        moved = np.where(is_later, np.minimum(later, next_emptied - 0.5), places)
        order = np.argsort(moved, kind="stable")
        shifted = log.plain()
        shifted.events = list(zip(kinds[order].tolist(), rows[order].tolist(), strict=True))
        yield shifted


def _replay_of(columns: dict[str, NDArray[Any]], native: dict[str, Any]) -> Replay:
    return Replay(columns, pools=_count_of_pools(columns), settings=native)


def _run(replay: Replay, native: dict[str, Any], order: int) -> dict[str, Any]:
    """The outcome of requests under settings, at some places for segments."""
    outcome: dict[str, Any] = replay.run(native, addresses=order, completion=_RECORDED, seed=0)
    return outcome


def columns_of(log: RequestLog) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
    """The requests as a recording without segments has them: a free is two events, the second at
    once unless the log says when.
    """
    sizes = np.array(log.sizes, np.uint64)
    rounded = (sizes + np.uint64(511)) // np.uint64(512) * np.uint64(512)
    row_address = np.uint64(_FIRST_ADDRESS) + np.concatenate(
        ([np.uint64(0)], np.cumsum(rounded)[:-1])
    ).astype(np.uint64)
    kinds, rows = np.array(log.kinds, np.int64), np.array(log.rows, np.int64)
    row_freed = kinds == FREE
    completed_at_once = row_freed & ~np.isin(rows, rows[kinds == COMPLETE])
    count = np.where(completed_at_once, 2, 1)
    source = np.repeat(np.arange(len(kinds)), count)
    is_second = kinds[source] == COMPLETE
    is_second[np.cumsum(count)[completed_at_once] - 1] = True
    action = np.select(
        [kinds[source] == ALLOCATE, kinds[source] == EMPTY_CACHE, is_second],
        [Action.ALLOC, Action.SEGMENT_FREE, Action.FREE_COMPLETED],
        Action.FREE_REQUESTED,
    ).astype(np.uint8)
    row = rows[source]
    streams = np.array(log.streams, np.uint64)
    born = np.flatnonzero(action == Action.ALLOC)
    none = np.zeros(0)
    scratch = np.zeros(len(sizes), np.uint8)
    at_once = (kinds[:-1] == ALLOCATE) & (rows[:-1] == rows[1:]) & row_freed[1:]
    scratch[rows[:-1][at_once]] = 1
    valid = np.maximum(row, 0)
    columns = {
        "action": action,
        "address": np.where(row < 0, np.uint64(0), row_address[valid]).astype(np.uint64),
        "size": np.where(row < 0, np.uint64(0), sizes[valid]).astype(np.uint64),
        "stream": np.where(row < 0, np.uint64(0), streams[valid]).astype(np.uint64),
        "emptied": (kinds[source] == EMPTY_CACHE).astype(np.uint8),
        "allocation": row.astype(np.int32),
        "released_pool": np.zeros(len(action), np.uint32),
        "row_born": born.astype(np.int64),
        "row_address": row_address,
        "row_requested": sizes,
        "row_taken": rounded,
        "row_stream": streams,
        "row_pool": _pools(streams),
        "row_scratch": scratch,
        "row_pending": np.zeros(len(sizes), np.uint8),
        "base_address": none.astype(np.uint64),
        "base_size": none.astype(np.uint64),
        "base_stream": none.astype(np.uint64),
        "base_reservation": none.astype(np.uint64),
        "base_pool": none.astype(np.uint32),
        "base_mapped": none.astype(np.uint8),
        "base_small": none.astype(np.uint8),
    }
    return {name: np.ascontiguousarray(column) for name, column in columns.items()}, row


def _pools(streams: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The number of each row's pool: 0 is the default one, each captured graph has its own."""
    graphs = np.unique(streams[streams >= FIRST_POOL])
    return np.where(streams >= FIRST_POOL, np.searchsorted(graphs, streams) + 1, 0).astype(
        np.uint32
    )


def _count_of_pools(columns: dict[str, NDArray[Any]]) -> int:
    return int(columns["row_pool"].max(initial=0)) + 1
