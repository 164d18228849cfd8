"""The self-proof: a recording replayed under its own settings, and how far that came out as it was
recorded.

Source of every rule: native/replay_*.cpp, which names PyTorch's functions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from vramlens._native import Replay
from vramlens.errors import InputError
from vramlens.ground.allocator_sizes import PAGE, segment_size
from vramlens.replay.first_difference import FirstDifference, first_difference
from vramlens.replay.requests import INSIDE_A_REQUEST, Requests, likely_requests
from vramlens.replay.settings import UNLIMITED, Settings, recorded_settings
from vramlens.replay.versions import Version, candidates
from vramlens.trace import NO_TEXT, Action
from vramlens.units import MIB

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vramlens.trace import DeviceTrace, OutOfMemory, Trace

_EVENTS_TO_REPLAY = 5_000_000
"""While looking for a limit: a second's worth."""
_FEWEST_TRIES, _MOST_TRIES = 16, 512
_LARGEST_REQUEST = 2**43
_LARGEST_RESERVE = 2**46
_LARGEST_DEVICE = 2**39
"""More than any device has: a limit that is not recorded is not looked for above it."""


@dataclass(frozen=True, slots=True)
class ReserveLimit:
    """What the process could reserve.

    Attributes:
        bytes: the limit; None where there was none, or none was met.
        below_bytes: where it is inferred: it is less than this, and at least ``bytes``.
        of_device: the device was full; no limit of the process.
        source: recording, given, inferred or none.
    """

    bytes: int | None = None
    below_bytes: int | None = None
    of_device: bool = False
    source: str = "none"

    @property
    def most_bytes(self) -> int | None:
        """The most that it may be; None where there is none."""
        if self.bytes is None:
            return None
        return max(self.bytes, (self.below_bytes or 0) - 1)

    @property
    def native(self) -> dict[str, int]:
        """The limit as a field of vl_replay_settings."""
        return {} if self.bytes is None else self.at(self.bytes)

    def at(self, limit_bytes: int) -> dict[str, int]:
        """A limit of this kind, of other bytes, as a field of vl_replay_settings."""
        return {"capacity" if self.of_device else "allowed_maximum": limit_bytes}


@dataclass(frozen=True, slots=True)
class Recorded:
    """What replaying a recording under its own settings gave.

    Attributes:
        settings: the recorded ones.
        version: whose rules.
        limit: of the process.
        exact: every segment event, address and block size came out as recorded.
        segment_events, addresses: how many were recorded, and how many of them came out.
        first_difference: None where exact.
        peak_requested_bytes, peak_allocated_bytes, peak_active_bytes, peak_reserved_bytes: as
        replayed.
        retries, failed_requests: as replayed.
        deferred_frees: whether blocks waited for other streams: when those were done is known only
            roughly.
        warm: whether memory was there before the first event.
        private_pools: ids of the pools beside the default one.
        is_prediction: whether the same rules made the recording: that it comes out again proves
            nothing.
    """

    settings: Settings
    version: Version
    limit: ReserveLimit
    exact: bool
    segment_events: int
    segment_events_matched: int
    addresses: int
    addresses_matched: int
    first_difference: FirstDifference | None
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    retries: int
    failed_requests: int
    deferred_frees: bool
    warm: bool
    private_pools: tuple[tuple[int, int], ...]
    is_prediction: bool = False


@dataclass(frozen=True, eq=False)
class Proven:
    """One device's recording with its proof, ready to be asked "what if".

    Attributes:
        device: as the trace has it.
        recorded: the proof.
        replay: the native replay.
        reserve_bytes: address space of one expandable segment.
        total_bytes: the device's memory; None where the recording does not say.
        requests: what was replayed.
    """

    device: DeviceTrace
    recorded: Recorded
    replay: Replay
    reserve_bytes: int
    total_bytes: int | None
    requests: Requests

    def native(self, settings: Settings | None = None, /, **limits: int) -> dict[str, Any]:
        """The fields of vl_replay_settings on this device; without settings the recorded ones."""
        settings = settings or self.recorded.settings
        return settings.native(self.recorded.version, reserve=self.reserve_bytes, **limits)

    def replay_of(self, columns: Mapping[str, NDArray[Any]]) -> Replay:
        """The native replay of other requests under the recorded settings, without a limit."""
        return Replay(columns, pools=len(self.requests.pools), settings=self.native())

    @cached_property
    def last_failure(self) -> OutOfMemory | None:
        """The failed request that ended the recording: nothing was allocated after it; else None."""
        failures = self.device.out_of_memory
        if not failures:
            return None
        later_actions = self.device.events.action[failures[-1].event :]
        return None if (later_actions == Action.ALLOC).any() else failures[-1]

    @property
    def ended_by_failure(self) -> bool:
        """Whether the recording ends with a failed request."""
        return self.last_failure is not None

    @cached_property
    def taken_bytes(self) -> NDArray[np.int64]:
        """Bytes that each allocation (a row of ``DeviceTrace.allocations``) really took."""
        return self.replay["taken"].view("int64")


def prove(
    trace: Trace, device: DeviceTrace, cap_bytes: int | None = None, *, once: bool = False
) -> Proven:
    """Replays one device's recording under the settings that it was recorded with.

    Args:
        cap_bytes: what the process could reserve, where the recording does not say.
        once: whether the likeliest rules and limit alone are tried, for the sake of time.

    Raises:
        InputError: the recording cannot be replayed.
    """
    refuse_unfit(trace, device)
    total = trace.total_bytes.get(device.device)
    reserve = min(total + total // 8, _LARGEST_RESERVE) if total else 2**42
    limits = [_known_limit(trace, device, cap_bytes)]
    if limits[0].source == "recording":  # the limit at the end need not be that of the whole run
        limits.append(ReserveLimit())
    best: Proven | None = None
    readings = likely_requests(trace, device)
    attempts = itertools.product(readings, candidates(trace, device), limits)
    for requests, version, limit in itertools.islice(attempts, 1 if once else None):
        proven = _prove(trace, device, requests, version, limit, reserve, search=not once)
        if best is None or proven.recorded.addresses_matched > best.recorded.addresses_matched:
            best = proven
        if proven.recorded.exact:
            return proven
    assert best is not None
    return best


def refuse_unfit(trace: Trace, device: DeviceTrace) -> None:
    """Refuses what would lead to wrong numbers.

    Raises:
        InputError: there is nothing to replay, or too little of it.
    """
    backend = str(trace.settings.get("backend", ""))
    conf = str(trace.settings.get("PYTORCH_CUDA_ALLOC_CONF"))
    if "cudaMallocAsync" in backend or "backend:cudaMallocAsync" in conf:
        raise InputError(
            f"{trace.source}: was recorded with backend:cudaMallocAsync, an allocator inside "
            "the driver, and cannot be replayed; record with backend:native"
        )
    actions = device.events.action
    if not len(actions):
        raise InputError(
            f"{trace.source}: has no events for device {device.device}, only its state at one "
            "moment: record the run"
        )
    if not (actions == Action.ALLOC).any():
        raise InputError(
            f"{trace.source}: has no allocations on device {device.device}, so there is nothing "
            "to replay"
        )
    reaches = device.events.address.astype(np.float64) + device.events.size
    if float(reaches.max()) >= 2.0**63 or int(device.events.size.max()) > _LARGEST_REQUEST:
        raise InputError(f"{trace.source}: contains addresses or sizes that no device has")
    if _lacks_actions(device):
        raise InputError(
            f"{trace.source}: events are missing (skip_actions leaves them out), and a replay "
            "needs every alloc, free_requested, free_completed and segment event; record "
            "without skip_actions"
        )


def _lacks_actions(device: DeviceTrace) -> bool:
    """True where a kind of event is missing that every run has."""
    actions, rows = device.events.action, device.allocations
    has_requests_to_free = bool((actions == Action.FREE_REQUESTED).any())
    has_completed_frees = bool((actions == Action.FREE_COMPLETED).any())
    if has_requests_to_free and not has_completed_frees and device.orphan_events:
        return True
    has_early = bool((rows.born < 0).any())
    if has_completed_frees and not has_requests_to_free and not has_early:
        return True
    return bool(((rows.segment == NO_TEXT) & (rows.born >= 0)).any())


def _known_limit(trace: Trace, device: DeviceTrace, cap_bytes: int | None) -> ReserveLimit:
    if cap_bytes is not None:
        return ReserveLimit(cap_bytes, source="given")
    limit_bytes = trace.meta.device(device.device).process_limit_bytes
    if limit_bytes is not None:
        return ReserveLimit(limit_bytes, source="recording")
    return ReserveLimit()


def _prove(
    trace: Trace,
    device: DeviceTrace,
    requests: Requests,
    version: Version,
    limit: ReserveLimit,
    reserve: int,
    *,
    search: bool,
) -> Proven:
    settings = recorded_settings(trace.settings, version)
    is_expandable = bool((device.events.action == Action.SEGMENT_MAP).any())
    if not trace.settings and is_expandable:  # a file cut short has no settings
        settings = replace(settings, conf="expandable_segments:True", expandable_segments=True)

    def replayed(tried_limit: ReserveLimit) -> Proven:
        replay = Replay(
            requests.columns,
            pools=len(requests.pools),
            settings=settings.native(version, reserve=reserve, **tried_limit.native),
        )
        recorded = _recorded(trace, device, requests, replay, settings, version, tried_limit)
        return Proven(
            device=device,
            recorded=recorded,
            replay=replay,
            reserve_bytes=reserve,
            total_bytes=trace.total_bytes.get(device.device),
            requests=requests,
        )

    proven = replayed(limit)
    if (
        search
        and limit.bytes is None
        and settings.garbage_collection_threshold
        and not _needs_no_limit(proven)
    ):
        proven = _with_inferred_limit(proven, settings, requests, replayed)
    if proven.recorded.limit.bytes is None:
        proven = replace(
            proven,
            recorded=replace(proven.recorded, limit=_met_limit(device, proven.replay, settings)),
        )
    return proven


def _needs_no_limit(proven: Proven) -> bool:
    """Whether it is exact and nothing was refused: else what was collected may have been taken
    for a retry.
    """
    return proven.recorded.exact and proven.replay.summary["limit_high"] % 2**64 == UNLIMITED


def _with_inferred_limit(
    without_limit: Proven,
    settings: Settings,
    requests: Requests,
    replayed: Callable[[ReserveLimit], Proven],
) -> Proven:
    """The replay under the limit that garbage collection must have had, if one explains the
    recording.
    """
    device = without_limit.device
    peak = device.reserved.peak_bytes
    if peak >= _LARGEST_DEVICE:
        return without_limit
    end = min(_largest_limit(device, settings, requests), _LARGEST_DEVICE + MIB)
    places = _limits_to_try(peak, end, settings)
    tries = min(max(_FEWEST_TRIES, _EVENTS_TO_REPLAY // len(device.events)), _MOST_TRIES)
    step = -(-len(places) // tries)
    tried: dict[int, Proven] = {}

    def at(place: int) -> Proven:
        if place not in tried:
            tried[place] = replayed(
                ReserveLimit(places[place], below_bytes=places[place + 1], source="inferred")
            )
        return tried[place]

    last = len(places) - 1

    def first_exact(some_places: range) -> int | None:
        return next((place for place in some_places if at(place).recorded.exact), None)

    def matched(proven: Proven) -> int:
        return proven.recorded.addresses_matched

    coarse = first_exact(range(0, last, step))
    best = max(tried, key=lambda place: matched(tried[place]))
    if coarse is None:
        coarse = first_exact(range(max(0, best - step + 1), min(last, best + step)))
    if coarse is None:
        return max((without_limit, at(best)), key=matched)
    # All that explain it are possible.
    low = high = coarse
    while low > 0 and len(tried) < 2 * _MOST_TRIES and at(low - 1).recorded.exact:
        low -= 1
    while high + 1 < last and len(tried) < 2 * _MOST_TRIES and at(high + 1).recorded.exact:
        high += 1
    limit = ReserveLimit(places[low], below_bytes=places[high + 1], source="inferred")
    return replace(at(low), recorded=replace(at(low).recorded, limit=limit))


def _limits_to_try(low: int, high: int, settings: Settings) -> list[int]:
    """One limit of each kind: between two of them nothing changes, since segments are whole
    multiples of 2 MiB.

    A limit refuses by what it is (alloc_block), and collects by what is above the threshold's share
    of it (garbage_collect_cached_blocks).
    """
    unit = PAGE if settings.large_segment_size % PAGE == 0 else MIB
    share = settings.garbage_collection_threshold
    refusing = np.arange(-(-low // unit) * unit, high + unit, unit)
    collecting = (
        np.arange(int(low * share) // unit * unit, int(high * share), unit) / share
    ).astype(np.int64) + 1
    collecting = collecting[(low <= collecting) & (collecting < high)]
    limits: list[int] = np.unique(np.concatenate(([low], refusing, collecting))).tolist()
    return limits


def _largest_limit(device: DeviceTrace, settings: Settings, requests: Requests) -> int:
    """An end to where the limit lies: requests failed, or had segments given back, although less
    was reserved.
    """
    events, reserved = device.events, device.reserved_curve
    ends = [
        int(reserved[failure.event]) + segment_size(failure.size_bytes, settings.large_segment_size)
        for failure in device.out_of_memory
    ]
    outer = np.flatnonzero(~np.isin(events.action, INSIDE_A_REQUEST))
    releases = np.flatnonzero(
        (events.action == Action.SEGMENT_FREE) & (requests.columns["emptied"] == 0)
    )
    factor = 2 if max(settings.roundup_power2_divisions) > 1 else 1
    for after in np.unique(np.searchsorted(outer, releases)).tolist():  # the request's own event
        before = int(reserved[outer[after - 1]]) if after else device.reserved.base_bytes
        segment = segment_size(
            int(events.size[outer[after]]) * factor + 511, settings.large_segment_size
        )
        # Either a new segment would have gone beyond it, or what was held was above the threshold's
        # share of it.
        ends.append(max(int(before / settings.garbage_collection_threshold) + 1, before + segment))
    return max(min(ends, default=0), device.reserved.peak_bytes + MIB)


def _met_limit(device: DeviceTrace, replay: Replay, settings: Settings) -> ReserveLimit:
    """Where the limit lies that refused segments, if any did."""
    low, high = replay.summary["limit_low"], replay.summary["limit_high"] % 2**64
    if high == UNLIMITED:
        return ReserveLimit()
    of_device = False
    for failure in device.out_of_memory:
        if failure.device_free_bytes is not None:
            of_device = failure.device_free_bytes < segment_size(
                failure.size_bytes, settings.large_segment_size
            )
            # What the device had left would have been served, too, but for a part of a page.
            whole_pages = (
                int(device.reserved_curve[failure.event]) + failure.device_free_bytes
            ) // PAGE
            if of_device and low < whole_pages * PAGE < high:
                low, high = whole_pages * PAGE, min(high, (whole_pages + 1) * PAGE)
    return ReserveLimit(low, below_bytes=high, of_device=of_device, source="inferred")


def is_as_recorded(summary: Mapping[str, int]) -> bool:
    """Whether every segment event, address and block size of a replay came out as recorded."""
    has_same_addresses = (
        summary["first_difference"] < 0
        and summary["addresses"] == summary["addresses_matched"] == summary["sizes_matched"]
    )
    return has_same_addresses and summary["segment_events"] == summary["segment_events_matched"]


def _recorded(
    trace: Trace,
    device: DeviceTrace,
    requests: Requests,
    replay: Replay,
    settings: Settings,
    version: Version,
    limit: ReserveLimit,
) -> Recorded:
    summary = replay.summary
    exact = is_as_recorded(summary)
    events = device.events
    deferred = int((events.action == Action.FREE_REQUESTED).sum())
    at_once = (events.action[:-1] == Action.FREE_REQUESTED) & (
        events.action[1:] == Action.FREE_COMPLETED
    )
    at_once &= events.address[:-1] == events.address[1:]
    return Recorded(
        settings=settings,
        version=version,
        limit=limit,
        exact=exact,
        segment_events=summary["segment_events"],
        segment_events_matched=summary["segment_events_matched"],
        addresses=summary["addresses"],
        addresses_matched=summary["addresses_matched"],
        first_difference=None if exact else first_difference(trace, device, requests, summary),
        peak_requested_bytes=summary["peak_requested"],
        peak_allocated_bytes=summary["peak_allocated"],
        peak_active_bytes=summary["peak_active"],
        peak_reserved_bytes=summary["peak_reserved"],
        retries=summary["retries"],
        failed_requests=summary["failed_requests"],
        deferred_frees=deferred > int(at_once.sum()),
        warm=requests.warm,
        private_pools=requests.pools[1:],
        is_prediction=trace.meta.is_prediction,
    )
