"""Leaks: what a whole recording says about growth, on every device, and when the memory will be
full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vramlens.analyses.attribution.attribution import Attribution, attribute
from vramlens.analyses.attribution.steps import Steps, steps_of
from vramlens.analyses.explanation import RecordingFacts, facts_of
from vramlens.analyses.finding import Finding
from vramlens.analyses.leaks.certainty import inside_one_call
from vramlens.analyses.leaks.growth import growth_of_steps, leaks_of, steps_missing
from vramlens.analyses.leaks.rate import TimeToFull, predicted
from vramlens.analyses.leaks.recorded_leak import RecordedLeak, order_of, sized
from vramlens.analyses.leaks.sampled_growth import sampled_growth
from vramlens.analyses.scene import Scene, device_named
from vramlens.ground.printed_answer import PrintedAnswer
from vramlens.ground.verdict import Verdict
from vramlens.trace import Action, DeviceTrace, Trace
from vramlens.units import MIB, counted

_PARTS = 20
_MOST_PARTS = 9
_BIRTHS_A_PART = 50  # fewer may be one forward pass, which keeps what its backward pass will need
_LEAST_BY_PARTS = MIB


@dataclass(frozen=True, slots=True)
class DeviceLeaks:
    """What grows on one device.

    Attributes:
        device: its index.
        steps: how many were seen.
        source: what tells them apart; None without steps.
        judged_steps: how many of them could be judged: what is alive at their end counts.
        leaks: the surest first; then what is not a problem, with the reason.
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
        leaks = (leak for device_leaks in self.devices for leak in device_leaks.leaks)
        return tuple(sorted(leaks, key=order_of))

    @property
    def sure(self) -> tuple[RecordedLeak, ...]:
        """Those that are proven or likely, and large enough to matter."""
        return tuple(leak for leak in self.leaks if leak.sure and not leak.is_small)

    @property
    def small(self) -> tuple[RecordedLeak, ...]:
        """Those that are too small to matter, however certain."""
        return tuple(leak for leak in self.leaks if leak.is_small)

    @property
    def unjudged(self) -> str:
        """Why nothing can be said about growth, as a phrase; "" where it could be judged."""
        if not self.devices:
            return "the recording has no GPU memory and no events"
        longest = max(self.devices, key=lambda device_leaks: device_leaks.steps)
        if not longest.steps:
            return "the recording shows no steps"
        if longest.needs_steps is not None:
            more = counted(longest.needs_steps, "more step")
            return f"{counted(longest.steps, 'step')} recorded, and {more} would show growth"
        return "the steps may be the layers of a single pass" if longest.inside_one_call else ""

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
    scenes = (
        Scene(attribute(trace, chosen), total_bytes=total_bytes)
        for chosen in _chosen_devices(trace, device)
    )
    answers = [_leaks_of_device(scene, at_least_bytes) for scene in scenes]
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
    return [device_named(trace, device)]


def _order_of_device(answer: DeviceLeaks) -> tuple[bool, int, int, int]:
    return min(map(order_of, answer.leaks), default=(True, len(Verdict), 0, 0))


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


def _leaks_of_device(scene: Scene, at_least_bytes: int | None) -> DeviceLeaks:
    view, device, event = scene.view, scene.device, scene.ending_event
    leaks = scene.all_growth
    if not len(view.steps):
        leaks = (*leaks_by_parts(view), *leaks)
    least_bytes, peak_bytes = at_least_bytes, None
    if least_bytes is None:
        least_bytes, peak_bytes = scene.least_leak_bytes, device.requested.peak_bytes
    leaks = sized(leaks, least_bytes, peak_bytes)
    has_ended_in_step = event is not None and len(view.steps) > 0
    last = int(view.steps.of(np.array([event]))[0]) if has_ended_in_step else len(view.steps) - 1
    return DeviceLeaks(
        device=device.device,
        steps=len(view.steps),
        source=view.steps.source,
        judged_steps=max(0, last),
        leaks=leaks,
        prediction=None if event is not None else predicted(view, leaks, scene.outside),
        failed_step=last if has_ended_in_step else None,
        failed=event is not None,
        wrapped=scene.trace.meta.wrapped.get(device.device, False),
        inside_one_call=inside_one_call(view),
        findings=tuple(sampled_growth(view, leaks, scene.outside, failed=event is not None)),
        least_bytes_per_step=least_bytes,
    )


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
    growing = leaks_of(view)
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
