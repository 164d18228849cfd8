"""Memory that grows although nothing is kept: streams and pools made again and again, blocks that
wait, the cache.

None of it is a tensor that leaks: the memory is free, but only for the stream or pool that it was
    cut for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramlens.analyses.attribution.attribution import Attribution
from vramlens.analyses.finding import Place
from vramlens.analyses.leaks.certainty import PATTERN, RESULT, SIGN, verdict_of_steps
from vramlens.analyses.leaks.cohorts import moment_of
from vramlens.analyses.leaks.rate import rate_of
from vramlens.analyses.leaks.recorded_leak import RecordedLeak
from vramlens.analyses.leaks.rhythm import rhythm_of
from vramlens.ground.verdict import Verdict
from vramlens.leak.fixes import fix_of_class
from vramlens.trace import NO_STACK, NO_TEXT
from vramlens.units import MIB, counted, format_size

_LEAST_BYTES = 16 * MIB
_LEAST_SHARE = 0.05
# c10/cuda/CUDAStream.cpp: kStreamsPerPoolBits; so no end is predicted from it.
_LIMITS: dict[str, tuple[str, ...]] = {
    "stream": ("PyTorch reuses 32 streams per priority, which limits the growth",),
    "pool": (),
}
_NOUNS = {"stream": "stream", "pool": "private pool"}


def reserved_growth(
    view: Attribution, leaks: tuple[RecordedLeak, ...], event: int | None = None
) -> list[RecordedLeak]:
    """Streams and pools of which each step leaves new ones behind; and a cache that grew without
    any of them.

    Args:
        leaks: what tensors leave behind: a cache that grows with them says nothing new.
        event: judge right after this event; by default when the last step begins.
    """
    steps, device = view.steps, view.device
    if not len(steps):
        return []
    moment, last = moment_of(view, event)
    if last < 1:
        return []
    segments = device.segments
    alive = segments.alive_after(moment)
    pools = segments.pool[alive]
    private = np.zeros(len(alive), np.bool_)
    is_named = pools != NO_TEXT
    private[is_named] = (view.trace.pools[pools[is_named]] != 0).any(axis=1)
    findings = _made_again(
        view, alive[private], pools[private].astype(np.uint64), last, moment, "pool"
    )
    findings += _made_again(
        view, alive[~private], segments.stream[alive[~private]], last, moment, "stream"
    )
    findings += _waiting(view, last, moment)
    if not findings and not any(leak.sure for leak in leaks):
        findings += _cache(view, last, moment)
    return findings


def _made_again(
    view: Attribution,
    segments: NDArray[np.int64],
    owner: NDArray[np.uint64],
    last: int,
    moment: int,
    kind: str,
) -> list[RecordedLeak]:
    """What new streams or pools of many steps hold, and none of their later requests uses."""
    table, allocations, steps = view.device.segments, view.device.allocations, view.steps
    if not len(segments):
        return []
    names, owner_of_segment = np.unique(owner, return_inverse=True)
    owner_of_segment = owner_of_segment.reshape(-1)
    size = np.bincount(owner_of_segment, weights=table.size_bytes[segments]).astype(np.int64)
    first = np.full(len(names), len(view.device.events), np.int64)
    np.minimum.at(first, owner_of_segment, table.born[segments])
    born = steps.of(first)
    # A stream that later steps use again keeps what it needs.
    rows = np.flatnonzero((allocations.born >= 0) & (allocations.born <= moment))
    owners = allocations.stream if kind == "stream" else allocations.pool
    holder = owners[rows].astype(np.uint64)
    place = np.minimum(np.searchsorted(names, holder), len(names) - 1)
    is_own = names[place] == holder
    used = np.full(len(names), -1, np.int64)
    np.maximum.at(used, place[is_own], view.step[rows[is_own]])
    idle = (born >= 0) & (born < last) & (used <= born)
    idle_bytes = np.bincount(born[idle], weights=size[idle], minlength=last).astype(np.int64)[:last]
    count = np.bincount(born[idle], minlength=last)[:last]
    rhythm = rhythm_of(count, 0)
    total = int(size[idle].sum())
    if isinstance(rhythm, str) or total < _LEAST_BYTES:
        return []
    verdict, needs = verdict_of_steps(rhythm, SIGN if kind == "stream" else RESULT)
    if verdict is None:
        return []
    reason = _reason_for_doubt(view, kind)
    if reason:
        verdict, needs = Verdict.POSSIBLE, None
    rate = rate_of(idle_bytes[rhythm.first :])
    of_idle = rows[is_own & idle[place]]
    where = _place_of_all(view, of_idle) if kind == "pool" else None
    where = where or _most_frequent_place(view, of_idle)
    return [
        RecordedLeak(
            verdict=verdict,
            kind=kind,
            place=where,
            bytes_per_step=round(rate.bytes),
            bytes=total,
            steps=rhythm.steps,
            fix=fix_of_class(kind),
            low=round(rate.low),
            high=round(rate.high),
            taken_per_step=0 if kind == "stream" else round(rate.bytes),
            device=view.device.device,
            evidence=(
                f"{counted(int(idle.sum()), _NOUNS[kind])} made in "
                f"{counted(rhythm.steps, 'step')}, none of them used in a later step",
                "reserved memory that no tensor uses; only that stream or pool can reuse it",
                *_LIMITS[kind],
            ),
            reason=reason,
            needs_steps=needs if verdict == Verdict.POSSIBLE else None,
        )
    ]


def _reason_for_doubt(view: Attribution, kind: str) -> str:
    """Why it may not be growth; "" where nothing speaks against it."""
    if kind == "pool":
        return "one pool per captured shape is limited by the number of shapes"
    if view.steps.source == PATTERN and view.device.reserved.base_bytes:
        return (
            "the steps are only a repeating pattern, and the recording does not include the start"
        )
    return ""


def _place_of_all(view: Attribution, rows: NDArray[np.int64]) -> Place | None:
    """The innermost line that led to all requests: where what a pool is for was captured."""
    stacks = view.trace.stacks
    paths = [
        stacks.frames[stacks.starts[stack] : stacks.starts[stack + 1]]
        for stack in np.unique(view.device.allocations.stack[rows]).tolist()
        if stack != NO_STACK
    ]
    own_paths = [path[stacks.user_frames[path]].tolist() for path in paths]
    own_paths = [path for path in own_paths if path]
    shared = set.intersection(*map(set, own_paths)) if own_paths else set()
    return next(
        (view.place(frame) for path in own_paths[:1] for frame in path if frame in shared), None
    )


def _most_frequent_place(view: Attribution, rows: NDArray[np.int64]) -> Place | None:
    frames = view.phases.frame[rows]
    frames = frames[frames >= 0]
    return view.place(int(np.bincount(frames).argmax())) if len(frames) else None


def _waiting(view: Attribution, last: int, moment: int) -> list[RecordedLeak]:
    """What the program gave up and the allocator cannot have back: another stream, which has not
    got that far, uses it.

    ``record_stream`` makes a block wait for an event of that stream (CUDACachingAllocator.cpp:
    insert_events); all that is given up later waits behind it (process_events stops at the first
    event that is not over).
    """
    allocations, steps, device = view.device.allocations, view.steps, view.device
    given_up = allocations.free_requested
    step = steps.of(given_up)
    rows = np.flatnonzero(
        (given_up <= moment) & (allocations.died > moment) & (step >= 0) & (step < last)
    )
    total = int(allocations.requested_bytes[rows].sum())
    if total < _LEAST_BYTES:
        return []
    came_back = np.flatnonzero((allocations.died <= moment) & (allocations.born >= 0))
    longest = int((steps.of(allocations.died[came_back]) - step[came_back]).max(initial=0))
    rhythm = rhythm_of(np.bincount(step[rows], minlength=last), longest)
    verdict, needs = verdict_of_steps(rhythm, SIGN) if not isinstance(rhythm, str) else (None, None)
    if isinstance(rhythm, str) or verdict is None:
        return []
    waiting_bytes = np.bincount(
        step[rows], weights=allocations.requested_bytes[rows], minlength=last
    ).astype(np.int64)
    rate = rate_of(waiting_bytes[rhythm.first :])
    frames = view.phases.frame[rows]
    frames, sizes = frames[frames >= 0], allocations.requested_bytes[rows][frames >= 0]
    where = view.place(int(np.bincount(frames, weights=sizes).argmax())) if len(frames) else None
    return [
        RecordedLeak(
            verdict=verdict,
            kind="stream",
            place=where,
            bytes_per_step=round(rate.bytes),
            bytes=total,
            steps=rhythm.steps,
            fix=fix_of_class("waiting"),
            is_freed=True,
            storages=len(rows),
            low=round(rate.low),
            high=round(rate.high),
            taken_per_step=round(rate.bytes),
            allocations_per_step=len(rows) / max(rhythm.steps, 1),
            device=device.device,
            evidence=(
                f"{counted(len(rows), 'block')} freed in {counted(rhythm.steps, 'step')} wait "
                "for another stream",
                f"other such blocks came back after at most {counted(longest, 'step')}",
            ),
            needs_steps=needs if verdict == Verdict.POSSIBLE else None,
        )
    ]


def _cache(view: Attribution, last: int, moment: int) -> list[RecordedLeak]:
    """What PyTorch's cache grew by since the first step, while what was kept between steps did
    not.
    """
    device, steps = view.device, view.steps
    if last < 3:
        return []
    starts = np.append(steps.starts[1 : last + 1], moment)
    reserved, requested = device.reserved_curve[starts], device.requested_curve[starts]
    grown = int(reserved[-1] - reserved[0])
    if (
        grown < max(_LEAST_BYTES, _LEAST_SHARE * int(reserved[0]))
        or int(requested[-1] - requested[0]) > grown / 4
    ):
        return []
    peaks = np.maximum.reduceat(
        device.requested_curve[: int(steps.starts[last])], steps.starts[:last]
    )
    rise = int(peaks.max() - np.median(peaks))
    why = "memory kept between steps did not grow; this is cached, and PyTorch reuses it"
    if rise > grown / 4:
        why = (
            f"no more memory is kept between steps. Step {int(peaks.argmax())} needed "
            f"{format_size(rise)} more than usual (a larger batch or a longer sequence), and "
            "PyTorch's cache keeps the size of the largest step"
        )
    return [
        RecordedLeak(
            verdict=Verdict.NOT_A_PROBLEM,
            kind=None,
            bytes_per_step=0,
            bytes=grown,
            steps=last,
            device=device.device,
            reason=why,
        )
    ]
