"""What a recording's requests lead to under other settings, with how sure that is.

Three things can make it unsure: where the driver puts segments (their addresses decide ties among
equal free blocks), when other streams were done with blocks, and what the program did after a
request failed that had been served, or the reverse. The first two are bounded by trying them; the
third makes the rest conditional.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from vramlens._layout import AddressOrder, Completion
from vramlens.errors import InputError
from vramlens.ground.verdict import Confidence
from vramlens.replay.proof import ReserveLimit
from vramlens.replay.settings import Settings, parse_settings
from vramlens.units import format_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from vramlens._native import NativeCurve
    from vramlens.replay.proof import Proven
    from vramlens.trace import DeviceTrace

_RANDOM_ORDERS = 8
_OTHER_ORDERS = (
    (AddressOrder.ASCENDING, 0),
    (AddressOrder.DESCENDING, 0),
    *((AddressOrder.RANDOM, seed) for seed in range(1, _RANDOM_ORDERS + 1)),
)
_OTHER_COMPLETIONS = (Completion.AT_ONCE, Completion.TWICE_AS_LATE)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The same requests under other settings or another limit.

    Attributes:
        settings: which.
        cap_bytes: what the process may reserve; None for no limit.
        peak_allocated_bytes, peak_reserved_bytes: up to the end, or to where the program would have
            died.
        low_bytes, high_bytes: peak reserved over all that was tried.
        retries: how often everything cached was given back to serve a request; each stalls the GPU.
        failed_requests: requests that the allocator would have failed.
        oom: the program would have died (True), lived (False), or None: cannot tell.
        oom_event: the first request that failed, None where none did.
        confidence: exact, bounded or conditional.
        why: what makes it less than exact, in words.
        past_failure: whether it surely gets past the failed request that ended the recording.
        ties: choices among equal free blocks that addresses decided.
        failed_bytes: what the request asked for that failed.
        curve: what would have been reserved over the events, with the driver's likeliest addresses;
            None where it was not asked for.
    """

    settings: Settings
    cap_bytes: int | None
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    low_bytes: int
    high_bytes: int
    retries: int
    failed_requests: int
    oom: bool | None
    oom_event: int | None
    confidence: Confidence
    why: tuple[str, ...]
    past_failure: bool
    ties: int
    failed_bytes: int | None
    curve: Curve | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WhatIfQuestion:
    """One what-if to ask.

    Attributes:
        settings: the allocator's.
        limit: what may be reserved.
    """

    settings: Settings
    limit: ReserveLimit


def question(
    proven: Proven, conf: str | None = None, cap_bytes: int | None = None, *, card: bool = False
) -> WhatIfQuestion:
    """The question behind a ``--conf`` and a ``--cap``; what is not given is as it was recorded.

    Args:
        card: ``cap_bytes`` is what a card has room for: no limit of the process, so it wakes no
            garbage collection.

    Raises:
        SettingsError: PyTorch would refuse the settings.
        InputError: the cap lies below what was there before the recording began.
    """
    recorded = proven.recorded
    settings = recorded.settings if conf is None else parse_settings(conf, recorded.version)
    limit = (
        recorded.limit
        if cap_bytes is None
        else ReserveLimit(cap_bytes, of_device=card, source="given")
    )
    if conf is not None and cap_bytes is None and settings.per_process_memory_fraction is not None:
        limit = _limit_of_fraction(proven, settings.per_process_memory_fraction)
    base = proven.device.reserved.base_bytes
    if limit.bytes is not None and limit.bytes < base:
        raise InputError(
            f"a cap of {format_size(limit.bytes)} is less than the {format_size(base)} that the "
            "process already used when recording began"
        )
    return WhatIfQuestion(settings, limit)


def _limit_of_fraction(proven: Proven, fraction: float) -> ReserveLimit:
    """What a process may reserve (DeviceCachingAllocator::setMemoryFraction)."""
    version = proven.recorded.version
    if fraction == 1 and version.rounds_fraction:
        return ReserveLimit()
    if proven.total_bytes is None:
        raise InputError(
            f"per_process_memory_fraction:{fraction} is a share of the GPU's memory, which this "
            "recording does not contain: leave it out and use --cap"
        )
    share = fraction * proven.total_bytes
    return ReserveLimit(round(share) if version.rounds_fraction else int(share), source="given")


def ask(
    proven: Proven,
    questions: Sequence[WhatIfQuestion],
    progress: Callable[[float], None] | None = None,
    *,
    quick: bool = False,
    curves: bool = False,
) -> list[WhatIf]:
    """The answer to each question, on all cores.

    Args:
        quick: whether each is replayed once only, with the driver's likeliest addresses: without a
            range.
        curves: whether each has its curve.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=max(1, min(len(questions), os.cpu_count() or 1))) as pool:
        answers = []
        for answer in pool.map(
            lambda asked: _answer(proven, asked, quick=quick, curves=curves), questions
        ):
            answers.append(answer)
            if progress is not None:
                progress(len(answers) / len(questions))
    return answers


def _answer(proven: Proven, asked: WhatIfQuestion, *, quick: bool, curves: bool) -> WhatIf:
    recorded = proven.recorded
    if recorded.exact and asked == WhatIfQuestion(recorded.settings, recorded.limit):
        return _as_recorded(proven, curves=curves)
    native = _native_settings(proven, asked)
    curve = None
    if curves:
        center, native_curve = proven.replay.curve(
            native, addresses=AddressOrder.DRIVER, completion=Completion.RECORDED, seed=0
        )
        curve = replayed_curve(native_curve, _died_event(proven, center))
    else:
        center = _run(proven, native)
    further_runs = [] if quick else _further_runs(proven, asked, native, center)
    return _judged(proven, asked, [center, *further_runs], curve)


def _native_settings(proven: Proven, asked: WhatIfQuestion) -> dict[str, Any]:
    settings = asked.settings
    native = proven.native(settings, **asked.limit.native)
    if settings.throw_on_cudamalloc_oom and asked.limit.bytes is not None:
        native["reject_above"] = asked.limit.bytes
    return native


def _run(
    proven: Proven,
    native: dict[str, Any],
    addresses: AddressOrder = AddressOrder.DRIVER,
    completion: Completion = Completion.RECORDED,
    seed: int = 0,
) -> dict[str, int]:
    return proven.replay.run(native, addresses=addresses, completion=completion, seed=seed)


def _further_runs(
    proven: Proven, asked: WhatIfQuestion, native: dict[str, Any], center: dict[str, int]
) -> list[dict[str, int]]:
    """The runs that bound what is not known: addresses, other streams, the limit."""
    limit = asked.limit
    runs = []
    if center["ties"]:
        runs += [_run(proven, native, order, seed=seed) for order, seed in _OTHER_ORDERS]
    if proven.recorded.deferred_frees:
        runs += [_run(proven, native, completion=when) for when in _OTHER_COMPLETIONS]
    if limit.below_bytes is not None and limit.most_bytes is not None:
        runs.append(_run(proven, native | limit.at(limit.most_bytes)))
    return runs


def _judged(
    proven: Proven, asked: WhatIfQuestion, runs: list[dict[str, int]], curve: Curve | None
) -> WhatIf:
    """The answer that all runs give together; the first is the likeliest."""
    center = runs[0]
    reserved = [run["peak_reserved"] for run in runs]
    conditional = tuple(_what_depends_on_the_program(proven, runs))
    bounded = tuple(_what_is_not_known(proven, asked, runs))
    has_failed = center["first_failure"] >= 0
    all_get_past = all(run["served_failures"] and not run["failures"] for run in runs)
    return WhatIf(
        settings=asked.settings,
        cap_bytes=asked.limit.bytes,
        peak_allocated_bytes=center["peak_allocated"],
        peak_reserved_bytes=center["peak_reserved"],
        low_bytes=min(reserved),
        high_bytes=max(reserved),
        retries=center["retries"],
        failed_requests=center["failures"],
        oom=_verdict(proven, runs),
        oom_event=center["first_failure"] if has_failed else None,
        confidence=_confidence(proven, conditional, bounded),
        why=conditional + bounded,
        past_failure=proven.ended_by_failure and all_get_past,
        ties=center["ties"],
        failed_bytes=center["failed_size"] if has_failed else None,
        curve=curve,
    )


def _confidence(
    proven: Proven, conditional: tuple[str, ...] = (), bounded: tuple[str, ...] = ()
) -> Confidence:
    if conditional:
        return Confidence.CONDITIONAL
    if proven.recorded.is_prediction:
        return Confidence.ESTIMATED
    return Confidence.BOUNDED if bounded else Confidence.EXACT


def _died_event(proven: Proven, run: dict[str, int]) -> int | None:
    """The failure that ends the program in one run: a new one, or the recorded one where it is
    still there.
    """
    if run["died_at"] >= 0:
        return run["died_at"]
    failure = proven.last_failure
    return None if failure is None or run["served_failures"] else failure.event


def _as_recorded(proven: Proven, *, curves: bool) -> WhatIf:
    """The recorded run itself, from its proof."""
    recorded, first = proven.recorded, proven.replay.summary["first_failure"]
    peak, failure = recorded.peak_reserved_bytes, proven.last_failure
    died = None if failure is None else failure.event
    return WhatIf(
        settings=recorded.settings,
        cap_bytes=recorded.limit.bytes,
        peak_allocated_bytes=recorded.peak_allocated_bytes,
        peak_reserved_bytes=peak,
        low_bytes=peak,
        high_bytes=peak,
        retries=recorded.retries,
        failed_requests=recorded.failed_requests,
        oom=proven.ended_by_failure,
        oom_event=first if first >= 0 else None,
        confidence=_confidence(proven),
        why=(),
        past_failure=False,
        ties=0,
        failed_bytes=int(proven.device.events.size[first]) if first >= 0 else None,
        curve=recorded_curve(proven.device, died) if curves else None,
    )


def _what_depends_on_the_program(proven: Proven, runs: list[dict[str, int]]) -> Iterator[str]:
    if not proven.recorded.exact:
        yield "the replay under the recorded settings is not exact"
    if not proven.device.whole:
        yield "the file ends early, so the end of the run is missing"
    if proven.recorded.warm:
        yield "recording began in the middle of the run, so earlier memory is left as it was"
    if any(run["died_at"] < 0 and run["new_failures"] for run in runs):
        yield (
            "requests fail that succeeded when recorded, and what the program would do then is "
            "unknown"
        )
    if any(run["served_failures"] for run in runs):
        if proven.ended_by_failure:
            yield (
                "it gets past the failure that ended the recording; what comes next is not recorded"
            )
        else:
            yield (
                "requests succeed that failed when recorded,"
                " and what the program would do then is unknown"
            )


def _what_is_not_known(
    proven: Proven, asked: WhatIfQuestion, runs: list[dict[str, int]]
) -> Iterator[str]:
    if runs[0]["ties"]:
        yield "the exact peak depends on where the driver places segments"
    if proven.recorded.deferred_frees:
        yield "it is only roughly known when other streams finished with blocks"
    if asked.limit.below_bytes is not None and any(
        run["failures"] or run["retries"] for run in runs
    ):
        yield "the limit of the run is only roughly known"


def _verdict(proven: Proven, runs: list[dict[str, int]]) -> bool | None:
    """Whether the program would have died of it; None where that cannot be told."""
    verdicts: set[bool | None] = set()
    for run in runs:
        if run["died_at"] >= 0:
            verdicts.add(True)
        elif run["new_failures"]:
            verdicts.add(None)  # a workspace: cuDNN catches that and tries a smaller one
        elif not proven.ended_by_failure:
            verdicts.add(False)
        else:  # the last recorded failure is still there, or what follows it is not recorded
            verdicts.add(None if run["served_failures"] else True)
    return verdicts.pop() if len(verdicts) == 1 else None


@dataclass(frozen=True, eq=False, slots=True)
class Curve:
    """Reserved bytes over a recording's events, a row a change.

    A request's change counts at the event that ends it: its allocation or failure.

    Attributes:
        event: never decreasing; -1 is what was there before the first event. Two rows of one event
            are the most within that event, and what was left right after it.
        reserved_bytes: from that event on.
        died_event: the request whose failure ends the program, and with it the curve; None where it
            runs to the end.
    """

    event: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64]
    died_event: int | None

    def after(self, events: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes reserved right after each of some events."""
        return self.reserved_bytes[np.searchsorted(self.event, events, side="right") - 1]


def replayed_curve(found: NativeCurve, died_event: int | None) -> Curve:
    """The curve of one run of the native replay."""
    return _changes(found["event"], found["reserved"], died_event)


def recorded_curve(device: DeviceTrace, died_event: int | None) -> Curve:
    """The recorded curve itself, each segment at its own event."""
    reserved = np.concatenate(
        (np.array([device.reserved.base_bytes], np.int64), device.reserved_curve)
    )
    return _changes(np.arange(-1, len(reserved) - 1), reserved, died_event)


def _changes(
    event: NDArray[np.int64], reserved: NDArray[np.int64], died_event: int | None
) -> Curve:
    changed = np.flatnonzero(np.diff(reserved, prepend=reserved[0] - 1))
    return Curve(event[changed], reserved[changed], died_event)
