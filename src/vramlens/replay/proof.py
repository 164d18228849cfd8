"""The self-proof: a recording replayed under its own settings, and how far that came out as it was recorded.

Source of every rule: native/replay_*.cpp, which names PyTorch's functions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from vramlens._native import Replay
from vramlens.errors import InputError
from vramlens.replay.requests import Requests, requests_of
from vramlens.replay.settings import UNLIMITED, Settings, recorded_settings
from vramlens.replay.versions import Version, candidates
from vramlens.trace import NO_TEXT, Action
from vramlens.units import MIB, format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vramlens.trace import DeviceTrace, Trace

_EVENTS_TO_REPLAY = 5_000_000
"""While looking for a limit: a second's worth."""
_FEWEST_TRIES, _MOST_TRIES = 16, 512
_LARGEST_REQUEST = 2**43
_LARGEST_RESERVE = 2**46


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where the replay did something else than the recording says.

    Attributes:
        event: its index.
        recorded, simulated: what happened, in words.
        why: what may explain it.
    """

    event: int
    recorded: str
    simulated: str
    why: str


@dataclass(frozen=True, slots=True)
class Limit:
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
    def native(self) -> dict[str, int]:
        """The limit as a field of vl_replay_settings."""
        if self.bytes is None:
            return {}
        return {"capacity" if self.of_device else "allowed_maximum": self.bytes}


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
        peak_requested_bytes, peak_allocated_bytes, peak_active_bytes, peak_reserved_bytes: as replayed.
        retries, failed_requests: as replayed.
        deferred_frees: whether blocks waited for other streams: when those were done is known only roughly.
        warm: whether memory was there before the first event.
        private_pools: ids of the pools beside the default one.
    """

    settings: Settings
    version: Version
    limit: Limit
    exact: bool
    segment_events: int
    segment_events_matched: int
    addresses: int
    addresses_matched: int
    first_difference: Difference | None
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_active_bytes: int
    peak_reserved_bytes: int
    retries: int
    failed_requests: int
    deferred_frees: bool
    warm: bool
    private_pools: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Proven:
    """One device's recording with its proof, ready to be asked "what if".

    Attributes:
        device: as the trace has it.
        recorded: the proof.
        replay: the native replay.
    """

    device: DeviceTrace
    recorded: Recorded
    replay: Replay
    reserve_bytes: int

    @cached_property
    def taken_bytes(self) -> NDArray[np.int64]:
        """Bytes that each allocation (a row of ``DeviceTrace.allocations``) really took."""
        return self.replay["taken"].view("int64")


def prove(trace: Trace, device: DeviceTrace, cap_bytes: int | None = None) -> Proven:
    """Replays one device's recording under the settings that it was recorded with.

    Args:
        cap_bytes: what the process could reserve, where the recording does not say.

    Raises:
        InputError: the recording cannot be replayed.
    """
    refuse_unfit(trace, device)
    requests = [requests_of(trace, device)]
    if not requests[0].has_stacks:
        requests.insert(0, requests_of(trace, device, ends_of_pools=False))
    total = trace.total_bytes.get(device.device)
    reserve = min(total + total // 8, _LARGEST_RESERVE) if total else 2**42
    limits = [_known_limit(trace, device, cap_bytes)]
    if limits[0].source == "recording":  # the limit at the end need not be that of the whole run
        limits.append(Limit())
    best: Proven | None = None
    for version in candidates(trace, device):
        for one, limit in itertools.product(requests, limits):
            found = _prove(trace, device, one, version, limit, reserve)
            if best is None or found.recorded.addresses_matched > best.recorded.addresses_matched:
                best = found
            if found.recorded.exact:
                return found
    assert best is not None
    return best


def refuse_unfit(trace: Trace, device: DeviceTrace) -> None:
    """Refuses what would lead to wrong numbers.

    Raises:
        InputError: there is nothing to replay, or too little of it.
    """
    backend = str(trace.settings.get("backend", ""))
    if "cudaMallocAsync" in backend or "backend:cudaMallocAsync" in str(trace.settings.get("PYTORCH_CUDA_ALLOC_CONF")):
        raise InputError(
            f"{trace.source}: was recorded with backend:cudaMallocAsync, an allocator inside the driver: nothing of it"
            " can be replayed; record with backend:native"
        )
    actions = device.events.action
    if not len(actions):
        raise InputError(f"{trace.source}: holds no events for device {device.device}, only a state: record the run")
    if not (actions == Action.ALLOC).any():
        raise InputError(f"{trace.source}: holds no allocations for device {device.device}: nothing to replay")
    reaches = device.events.address.astype(np.float64) + device.events.size
    if float(reaches.max()) >= 2.0**63 or any(f.size_bytes > _LARGEST_REQUEST for f in device.out_of_memory):
        raise InputError(f"{trace.source}: holds addresses or sizes that no device has")
    given_up, done = (bool((actions == kind).any()) for kind in (Action.FREE_REQUESTED, Action.FREE_COMPLETED))
    without_end = given_up and not done and device.orphan_events
    without_begin = done and not given_up and not (device.allocations.born < 0).any()
    nowhere = (device.allocations.segment == NO_TEXT) & (device.allocations.born >= 0)
    if without_end or without_begin or nowhere.any():
        raise InputError(
            f"{trace.source}: events are missing, as skip_actions leaves them out: without every alloc, free_requested,"
            " free_completed and segment event nothing can be replayed; record without skip_actions"
        )


def _known_limit(trace: Trace, device: DeviceTrace, cap_bytes: int | None) -> Limit:
    if cap_bytes is not None:
        return Limit(cap_bytes, source="given")
    meta = trace.meta.devices.get(device.device) if trace.meta else None
    if meta is not None and meta.process_limit_bytes is not None:
        return Limit(meta.process_limit_bytes, source="recording")
    return Limit()


def _prove(
    trace: Trace, device: DeviceTrace, requests: Requests, version: Version, limit: Limit, reserve: int
) -> Proven:
    settings = recorded_settings(trace.settings, version)
    if not trace.settings and (device.events.action == Action.SEGMENT_MAP).any():  # a file cut short has none
        settings = replace(settings, conf="expandable_segments:True", expandable_segments=True)

    def replayed(given: Limit) -> Proven:
        replay = Replay(
            requests.columns,
            pools=len(requests.pools),
            settings=settings.native(version, reserve=reserve, **given.native),
        )
        recorded = _recorded(trace, device, requests, replay, settings, version, given)
        return Proven(device, recorded, replay, reserve)

    found = replayed(limit)
    if limit.bytes is None and settings.garbage_collection_threshold and not found.recorded.exact:
        found = _with_inferred_limit(found, settings, replayed)
    if found.recorded.limit.bytes is None:
        found = replace(found, recorded=replace(found.recorded, limit=_met_limit(device, found.replay, settings)))
    return found


def _with_inferred_limit(found: Proven, settings: Settings, replayed: Callable[[Limit], Proven]) -> Proven:
    """The replay under the limit that garbage collection must have had, if one explains the recording."""
    device = found.device
    low = device.reserved.peak_bytes
    high = _largest_limit(device, settings)
    tries = min(max(_FEWEST_TRIES, _EVENTS_TO_REPLAY // len(device.events)), _MOST_TRIES)
    step = max(MIB, (high - low) // tries)
    best = found
    for limit in range(low, high, step):
        tried = replayed(Limit(limit, below_bytes=limit + step, source="inferred"))
        if tried.recorded.addresses_matched > best.recorded.addresses_matched or tried.recorded.exact:
            best = tried
        if tried.recorded.exact:
            break
    return best


def _largest_limit(device: DeviceTrace, settings: Settings) -> int:
    """An end to where the limit lies: a request failed, or garbage was collected, although less was reserved."""
    events, reserved = device.events, device.reserved_curve
    ends = [
        int(reserved[failure.event]) + _segment_bytes(failure.size_bytes, settings) for failure in device.out_of_memory
    ]
    releases = np.flatnonzero(events.action == Action.SEGMENT_FREE)
    if len(releases):
        first = int(releases[0])
        before = int(reserved[first - 1]) if first else device.reserved.base_bytes
        ends.append(int(before / settings.garbage_collection_threshold) + 1)
    return max(min(ends, default=0), device.reserved.peak_bytes + MIB)


def _met_limit(device: DeviceTrace, replay: Replay, settings: Settings) -> Limit:
    """Where the limit lies that refused segments, if any did."""
    low, high = replay.summary["limit_low"], replay.summary["limit_high"] % 2**64
    if high == UNLIMITED:
        return Limit()
    of_device = False
    for failure in device.out_of_memory:
        if failure.device_free_bytes is not None:
            of_device = failure.device_free_bytes < _segment_bytes(failure.size_bytes, settings)
    return Limit(low, below_bytes=high, of_device=of_device, source="inferred")


def _segment_bytes(size: int, settings: Settings) -> int:
    """What a request asks of the driver (DeviceCachingAllocator::get_allocation_size)."""
    if size <= MIB:
        return 2 * MIB
    return settings.large_segment_size if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB


def _recorded(
    trace: Trace,
    device: DeviceTrace,
    requests: Requests,
    replay: Replay,
    settings: Settings,
    version: Version,
    limit: Limit,
) -> Recorded:
    found = replay.summary
    same = found["first_difference"] < 0 and found["addresses"] == found["addresses_matched"] == found["sizes_matched"]
    exact = same and found["segment_events"] == found["segment_events_matched"]
    events = device.events
    deferred = int((events.action == Action.FREE_REQUESTED).sum())
    at_once = (events.action[:-1] == Action.FREE_REQUESTED) & (events.action[1:] == Action.FREE_COMPLETED)
    at_once &= events.address[:-1] == events.address[1:]
    return Recorded(
        settings=settings,
        version=version,
        limit=limit,
        exact=exact,
        segment_events=found["segment_events"],
        segment_events_matched=found["segment_events_matched"],
        addresses=found["addresses"],
        addresses_matched=found["addresses_matched"],
        first_difference=None if exact else _difference(trace, device, requests, found),
        peak_requested_bytes=found["peak_requested"],
        peak_allocated_bytes=found["peak_allocated"],
        peak_active_bytes=found["peak_active"],
        peak_reserved_bytes=found["peak_reserved"],
        retries=found["retries"],
        failed_requests=found["failed_requests"],
        deferred_frees=deferred > int(at_once.sum()),
        warm=requests.warm,
        private_pools=requests.pools[1:],
    )


_WORDS = {
    Action.ALLOC: "an allocation",
    Action.FREE_COMPLETED: "a free block",
    Action.SEGMENT_ALLOC: "a new segment",
    Action.SEGMENT_FREE: "a segment given back",
    Action.SEGMENT_MAP: "newly mapped memory",
    Action.SEGMENT_UNMAP: "memory unmapped",
    Action.OOM: "a failed request",
}


def _words(action: int, address: int, size: int) -> str:
    what = _WORDS.get(Action(action), "nothing") if action >= 0 else "nothing"
    return f"{what} of {format_size(size)} at {address:#x}" if address else f"{what} of {format_size(size)}"


def _difference(trace: Trace, device: DeviceTrace, requests: Requests, found: dict[str, int]) -> Difference | None:
    event, events = found["first_difference"], device.events
    if event < 0:
        return None
    recorded = "the end of the recording"
    if event < len(events):
        recorded = _words(int(events.action[event]), int(events.address[event]), int(events.size[event]))
    simulated = "nothing"
    if found["simulated_action"] >= 0:
        simulated = _words(found["simulated_action"], found["simulated_address"] % 2**64, found["simulated_size"])
    return Difference(event, recorded, simulated, _why(trace, device, requests, found))


def _why(trace: Trace, device: DeviceTrace, requests: Requests, found: dict[str, int]) -> str:
    """What the recording lacks that may explain a difference."""
    if device.orphan_events:
        return "events are missing from the recording (a full ring buffer, skip_actions, or a file cut short)"
    if requests.warm:
        return "recording began in mid-run: sizes of some early blocks, and where unmapped memory lay, are not in it"
    if trace.settings.get("garbage_collection_threshold") and trace.meta is None:
        return (
            "garbage collection depends on the memory limit, which a bare snapshot does not hold: give --recorded-cap"
        )
    if not requests.has_stacks:
        return (
            "recorded without stacks: which releases were empty_cache, and which were a MemPool's end, cannot be told"
        )
    if not trace.torch_version:
        return "the recording does not say which version of PyTorch made it; the rules of none that is known fit"
    return "an event that the recording does not hold, or a rule of this PyTorch version that vramlens does not know"
