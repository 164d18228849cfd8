"""Leaks: what a whole recording says about growth, on every device, and when the memory will be
full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution, attribute
from vramlens.analyses.attribution.steps import Steps, steps_of
from vramlens.analyses.explanation import RecordingFacts
from vramlens.analyses.facts import facts_of
from vramlens.analyses.failure.ending import went_on
from vramlens.analyses.failure.oom import Outside, failure_of
from vramlens.analyses.failure.surroundings import measured_ledger, message_for, outside_of
from vramlens.analyses.finding import Finding
from vramlens.analyses.leaks.certainty import inside_one_call
from vramlens.analyses.leaks.growth import growth_of_steps, steps_missing
from vramlens.analyses.leaks.outside_pytorch import (
    external_leak as external_leak,  # what explain takes from here
)
from vramlens.analyses.leaks.rate import Rate, TimeToFull, prediction_of
from vramlens.analyses.leaks.rebuilt_tensors import rebuilt_larger
from vramlens.analyses.leaks.recorded_leak import RecordedLeak, rows_of, sized
from vramlens.analyses.leaks.reserved_growth import reserved_growth
from vramlens.analyses.leaks.sampled_growth import sampled_growth
from vramlens.errors import UsageError
from vramlens.ground.printed_answer import PrintedAnswer
from vramlens.ground.verdict import Verdict
from vramlens.leak.claim import growth_words, notes_of, owner_words
from vramlens.leak.leak import least_bytes_per_step
from vramlens.trace import Action, DeviceTrace, Trace
from vramlens.units import MIB, counted, format_size

_PARTS = 20
_MOST_PARTS = 9
_BIRTHS_A_PART = 50  # fewer may be one forward pass, which keeps what its backward pass will need
_LEAST_BY_PARTS = MIB
_OUTSIDE = (
    "nccl",
    "this_process_other",
    "other_processes",
    "outside_pytorch",
    "driver_reserved",
    "unknown",
)


@dataclass(frozen=True, slots=True)
class DeviceLeaks:
    """What grows on one device.

    Attributes:
        device: its index.
        steps: how many were seen.
        source: what tells them apart; None without steps.
        judged_steps: how many of them could be judged: what is alive at their end counts.
        leaks: the surest first; then what is no problem, with the reason.
        prediction: when its memory will be full; None where nothing sure grows, or the limit is not
            known.
        failed_step: the step in which memory ran out for good; None where it did not, or there are
            no steps.
        wrapped: whether the recording's earliest events are overwritten.
        inside_one_call: whether what seem to be steps may be the layers of one pass: then nothing
            was judged.
        findings: growth that the samples of the run show, and events do not.
        failed: whether memory ran out for good.
        least_bytes_per_step: what a step has to leave behind to matter.
    """

    device: int
    steps: int
    source: str | None
    judged_steps: int
    leaks: tuple[RecordedLeak, ...]
    prediction: TimeToFull | None
    failed_step: int | None
    wrapped: bool
    inside_one_call: bool
    findings: tuple[Finding, ...]
    failed: bool = False
    least_bytes_per_step: int = 0

    @property
    def needs_steps(self) -> int | None:
        """How many more steps would allow a verdict; None where there are enough."""
        return steps_missing(self.judged_steps) if self.steps else None


@dataclass(frozen=True, slots=True, repr=False)
class RecordedLeakReport(PrintedAnswer):
    """The answer of ``vramlens leaks``.

    Attributes:
        recording: what was read.
        devices: those looked at, the one with the surest and fastest leak first.
        has_owners: whether the recording holds what the process saw of its objects.
    """

    recording: RecordingFacts
    devices: tuple[DeviceLeaks, ...]
    has_owners: bool

    @property
    def leaks(self) -> tuple[RecordedLeak, ...]:
        """Of all devices: the surest first, then the fastest growing."""
        return tuple(
            sorted(
                (leak for device_leaks in self.devices for leak in device_leaks.leaks), key=_order
            )
        )

    @property
    def sure(self) -> tuple[RecordedLeak, ...]:
        """Those that are proven or likely, and large enough to matter."""
        return tuple(leak for leak in self.leaks if leak.sure and not leak.is_small)

    @property
    def small(self) -> tuple[RecordedLeak, ...]:
        """Those that are too small to matter, however certain."""
        return tuple(leak for leak in self.leaks if leak.is_small)

    @property
    def found(self) -> bool:
        """Whether anything proven or likely grows that is large enough to matter, by events or
        by samples.
        """
        return bool(self.sure) or any(
            finding.verdict.is_sure
            for device_leaks in self.devices
            for finding in device_leaks.findings
        )


def _order(leak: RecordedLeak) -> tuple[bool, int, int, int]:
    return leak.is_small, leak.verdict.rank, -leak.bytes_per_step, -leak.bytes


def leaks_of_trace(
    trace: Trace,
    *,
    device: int | None = None,
    total_bytes: int | None = None,
    at_least_bytes: int | None = None,
) -> RecordedLeakReport:
    """What leaks in a recording.

    Args:
        device: only this one; by default every device that events were recorded on.
        total_bytes: the device's memory, where the recording does not say.
        at_least_bytes: what a step has to leave behind to matter; by default a share of the device
            over a run's life (``least_bytes_per_step``).

    Raises:
        UsageError: the recording has no such device, or reserved more than ``total_bytes``.
    """
    answers = [
        _leaks_of_device(trace, chosen, total_bytes, at_least_bytes)
        for chosen in _chosen_devices(trace, device)
    ]
    if device is None:
        of_hosts = (_leaks_of_host(trace, host) for host in trace.host)
        answers += [leaks for leaks in of_hosts if leaks is not None]
    has_owners = trace.owners is not None and len(trace.owners) > 0
    return RecordedLeakReport(
        facts_of(trace), tuple(sorted(answers, key=_order_of_device)), has_owners
    )


def _chosen_devices(trace: Trace, device: int | None) -> list[DeviceTrace]:
    """The device asked for; without one every device that events were recorded on, or all."""
    if device is None:
        with_events = [chosen for chosen in trace.devices.values() if len(chosen.events)]
        return with_events or list(trace.devices.values())
    if device not in trace.devices:
        devices = ", ".join(map(str, trace.devices)) or "none"
        raise UsageError(f"the recording has no device {device} (it has: {devices})")
    return [trace.devices[device]]


def _order_of_device(answer: DeviceLeaks) -> tuple[bool, int, int, int]:
    return min(map(_order, answer.leaks), default=(True, len(Verdict), 0, 0))


def leaks_by_parts(view: Attribution) -> tuple[RecordedLeak, ...]:
    """What grows through a recording that shows no steps: the same judgement, over equal parts of
    its requests.

    Possible at most, and without bytes per step.
    """
    births = np.flatnonzero(view.device.events.action == Action.ALLOC)
    if len(births) < _PARTS * _BIRTHS_A_PART:
        return ()
    starts = np.append(
        0, births[np.linspace(0, len(births), _PARTS, endpoint=False).astype(np.int64)[1:]]
    )
    parts = Steps(starts, np.append(starts[1:], len(view.device.events)), None)
    cut = replace(view, steps=parts, step=parts.of(view.device.allocations.born))
    return tuple(
        replace(
            leak,
            verdict=Verdict.POSSIBLE,
            bytes_per_step=0,
            low=0,
            high=0,
            taken_per_step=0,
            needs_steps=None,
            steps=0,
            reason="the recording shows no steps, so it is unknown when memory should be freed",
            evidence=(f"{leak.steps} of {_PARTS} equal parts of the recording left memory behind",),
        )
        for leak in growth_of_steps(cut)
        if (leak.sure or (leak.needs_steps and leak.steps >= _MOST_PARTS))
        and leak.bytes >= _LEAST_BY_PARTS
    )


def _leaks_of_device(
    trace: Trace, device: DeviceTrace, total_bytes: int | None, at_least_bytes: int | None
) -> DeviceLeaks:
    view = attribute(trace, device)
    outside = outside_of(view, message_for(view, ()), total_bytes)
    failure = failure_of(view, outside)
    event = None
    if failure is not None and not went_on(view, failure.request):
        event = failure.request.event
    leaks = (*leaks_at(view, event), *external_leak(view))
    if not len(view.steps):
        leaks = (*leaks_by_parts(view), *leaks)
    least_bytes = at_least_bytes
    peak_bytes = None
    if least_bytes is None:
        least_bytes = least_that_matters(view, outside, total_bytes)
        peak_bytes = device.requested.peak_bytes
    leaks = sized(leaks, least_bytes, peak_bytes)
    has_ended_in_step = event is not None and len(view.steps) > 0
    last = int(view.steps.of(np.array([event]))[0]) if has_ended_in_step else len(view.steps) - 1
    return DeviceLeaks(
        device=device.device,
        steps=len(view.steps),
        source=view.steps.source,
        judged_steps=max(0, last),
        leaks=leaks,
        prediction=None if event is not None else predicted(view, leaks, outside, total_bytes),
        failed_step=last if has_ended_in_step else None,
        failed=event is not None,
        wrapped=bool(trace.meta is not None and trace.meta.wrapped.get(device.device)),
        inside_one_call=inside_one_call(view),
        findings=tuple(sampled_growth(view, leaks, outside, failed=event is not None)),
        least_bytes_per_step=least_bytes,
    )


def least_that_matters(view: Attribution, outside: Outside, total_bytes: int | None = None) -> int:
    """From how many bytes per step on a leak matters on a device, by what the process may reserve
    there.
    """
    limit = _limit(view, outside, total_bytes)
    return least_bytes_per_step(limit, view.device.reserved.peak_bytes, len(view.steps))


def _leaks_of_host(trace: Trace, host: DeviceTrace) -> DeviceLeaks | None:
    """What grows in pinned host memory, by the steps of the device that is used most; None where
    nothing does.
    """
    view = attribute(trace, host)
    main = trace.main_device
    if main is not None and len(host.events):
        steps = steps_of(trace, trace.devices[main])
        if len(steps):
            ended = trace.devices[main].clock_us[steps.starts[1:] - 1]
            starts = np.unique(np.append(0, np.searchsorted(host.clock_us, ended, side="right")))
            starts = starts[starts < len(host.events)]
            ends = np.append(starts[1:], len(host.events))
            view = replace(view, steps=Steps(starts, ends, steps.source))
            view = replace(view, step=view.steps.of(host.allocations.born))
    growing = tuple(leak for leak in growth_of_steps(view) if leak.verdict != Verdict.NOT_A_PROBLEM)
    if not growing:
        return None
    last = len(view.steps) - 1
    return DeviceLeaks(
        device=host.device,
        steps=last + 1,
        source=view.steps.source,
        judged_steps=last,
        leaks=growing,
        prediction=None,
        failed_step=None,
        wrapped=False,
        inside_one_call=False,
        findings=(),
    )


def leaks_at(view: Attribution, event: int | None = None) -> tuple[RecordedLeak, ...]:
    """All that grows on a device, and what only seems to; judged after an event, or when the
    last step begins.
    """
    if inside_one_call(view):
        return ()
    leaks = growth_of_steps(view, event)
    told_rows = rows_of(leak for leak in leaks if leak.verdict != Verdict.NOT_A_PROBLEM)
    renewed = [leak for leak in rebuilt_larger(view, event) if not leak.is_mostly_in(told_rows)]
    renewed_rows = rows_of(renewed)
    leaks = tuple(leak for leak in leaks if not leak.is_mostly_in(renewed_rows))
    further_leaks = (*renewed, *reserved_growth(view, (*leaks, *renewed), event))
    return tuple(sorted((*leaks, *further_leaks), key=_order))


def predicted(
    view: Attribution,
    leaks: tuple[RecordedLeak, ...],
    outside: Outside,
    total_bytes: int | None = None,
    event: int | None = None,
) -> TimeToFull | None:
    """When the memory will be full, if what is sure to grow goes on; None where that, or the
    limit, is not known.
    """
    growing = [leak for leak in leaks if leak.sure and leak.taken_per_step > 0]
    limit = _limit(view, outside, total_bytes)
    if not growing or limit is None or not len(view.steps):
        return None
    device, steps = view.device, view.steps
    last = len(steps) - 1 if event is None else int(steps.of(np.array([event]))[0])
    end = int(steps.ends[last]) if event is None else event + 1
    first = int(steps.starts[max(0, last - max(3, last // 4))])
    # Rounding of blocks: what is allocated goes up and down as what is requested does.
    rounded = device.allocated.peak_bytes / max(device.requested.peak_bytes, 1)
    highest = round(int(device.requested_curve[first:end].max()) * max(1.0, rounded))
    reserved = int(device.reserved_curve[end - 1])
    rates = [
        Rate(
            leak.taken_per_step,
            leak.low * leak.taken_per_step / max(leak.bytes_per_step, 1),
            leak.high * leak.taken_per_step / max(leak.bytes_per_step, 1),
        )
        for leak in growing
    ]
    return prediction_of(rates, highest, reserved, limit)


def _limit(view: Attribution, outside: Outside, total_bytes: int | None) -> int | None:
    """What the process may reserve at most; None where unknown."""
    limits = [] if outside.limit_bytes is None else [outside.limit_bytes]
    if outside.total_bytes is not None:
        ledger = measured_ledger(view, total_bytes)
        other_bytes = (
            sum(part.bytes for part in ledger.parts if part.kind in _OUTSIDE)
            if ledger is not None
            else 0
        )
        limits.append(max(0, outside.total_bytes - other_bytes))
    return min(limits, default=None)


def leak_finding(leak: RecordedLeak, prediction: TimeToFull | None = None) -> Finding:
    """A leak as a finding of ``vramlens explain``, in the words of every report."""
    if leak.kind == "context":
        title = f"this process has {format_size(leak.bytes)} on a device that it does not use"
    else:
        title = growth_words(leak) + (f", at {leak.place}" if leak.place else "")
    if prediction is not None and leak.sure:
        title += f"; {when(prediction)}"
    owner = () if leak.owner is None else (owner_words(leak, leak.owner),)
    return Finding(
        id="leak",
        verdict=leak.verdict,
        title=title,
        bytes=leak.bytes,
        place=leak.place,
        evidence=(*owner, *notes_of(leak)),
        fix=leak.advice,
    )


_FAR = 1_000_000


def when(prediction: TimeToFull) -> str:
    """``out of memory in about 61 steps (50 to 72)``."""
    low, middle, high = (
        _rounded(number) for number in (prediction.low, prediction.steps, prediction.high)
    )
    if prediction.low > _FAR:
        return f"room for more than {_rounded(prediction.low):,} steps"
    if high <= 1:
        return "out of memory within the next step or two"
    span = f" ({low:,} to {high:,})" if low < high else ""
    return f"out of memory in about {counted(middle, 'step')}{span}"


def _rounded(number: int) -> int:
    """The number with three telling digits: it is an estimate."""
    scale = int("1" + "0" * max(0, len(str(number)) - 3))
    return number // scale * scale
