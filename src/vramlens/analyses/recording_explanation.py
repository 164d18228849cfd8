"""Puts the analyses together: all there is to say about one recording, or about one error text."""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.analyses.attribution.attribution import Attribution, attribute
from vramlens.analyses.explanation import (
    Explanation,
    OomVerdict,
    RecordingFacts,
    StepFacts,
    facts_of,
)
from vramlens.analyses.failure.surroundings import ledger_rows
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.findings.ranking import (
    found_by_row,
    least_advice,
    ranked,
    that_matter,
)
from vramlens.analyses.findings.table import FROM_RECORDING, HOLES_FIRST, ROWS
from vramlens.analyses.scene import Scene, device_named
from vramlens.errors import InputError, UsageError
from vramlens.read.oom.oom_text import OomMessage
from vramlens.trace import DeviceTrace, Frame, Trace

_NO_STEPS = StepFacts(0, None, ())


def choose_device(trace: Trace, device: int | None = None) -> DeviceTrace | None:
    """The device that answers are about: the one asked for, else of those where a request failed, or
    of all where none did, the one with the highest requested peak.

    Raises:
        UsageError: the recording knows no such device.
    """
    if device is None:
        failed = [candidate for candidate in trace.devices.values() if candidate.out_of_memory]
        if failed:
            return max(failed, key=lambda failed_device: failed_device.requested.peak_bytes)
        return None if trace.main_device is None else trace.devices[trace.main_device]
    return device_named(trace, device)


def needed_device(trace: Trace, device: int | None = None) -> DeviceTrace:
    """The device that answers are about, where they need one.

    Raises:
        UsageError: the recording knows no such device.
        InputError: it knows none at all.
    """
    chosen = choose_device(trace, device)
    if chosen is None:
        raise InputError(f"{trace.source}: contains no GPU memory and no events")
    return chosen


def moment(device: DeviceTrace, at: str) -> int:
    """The event that ``at`` means: "peak", "oom", "end" or an event's number.

    Raises:
        UsageError: there is no such moment.
    """
    if at == "peak":
        return device.requested.peak_event
    if at == "end":
        return len(device.events) - 1
    if at == "oom":
        if not device.out_of_memory:
            raise UsageError(
                f"no request failed on device {device.device}: leave --at out, or say peak or end"
            )
        return device.out_of_memory[-1].event
    if at.isascii() and at.isdigit() and int(at) < len(device.events):
        return int(at)
    raise UsageError(
        f"--at takes peak, oom, end or an event from 0 to {len(device.events) - 1}, not {at!r}"
    )


def explain_trace(
    trace: Trace,
    *,
    at: str | None = None,
    device: int | None = None,
    messages: Sequence[OomMessage] = (),
    total_bytes: int | None = None,
    view: Attribution | None = None,
) -> Explanation:
    """The explanation of a recording.

    Args:
        at: the moment that the heap is shown at: "peak", "oom", "end" or an event's number; None is
            the failure that ended the program, else the peak.
        device: the device; by default the one with the highest requested peak.
        messages: out-of-memory errors that the program printed, if at hand: the one that fits the
            recording's failure tells limits and other processes.
        total_bytes: the device's memory, if known.
        view: the device's attribution, where it is at hand.

    Raises:
        UsageError: there is no such device or moment, or no message fits.
    """
    chosen = choose_device(trace, device)
    if chosen is None:
        return _explain_nothing(trace, at)
    view = attribute(trace, chosen) if view is None else view
    scene = Scene(view, messages, total_bytes)
    verdict = scene.verdict
    if at is None:
        at = "oom" if scene.is_ended_by_failure else "peak"
    return Explanation(
        recording=facts_of(trace),
        peak=scene.peak,
        heap=scene.heap_at(moment(chosen, at)),
        at=at,
        oom=verdict,
        steps=_step_facts(scene),
        fragmentation=scene.fragmentation,
        leaks=scene.growth,
        ledger=ledger_rows(view, scene.message, scene.outside),
        findings=findings_of(scene),
    )


def _step_facts(scene: Scene) -> StepFacts:
    """The steps; none where what repeats is known to be the layers or turns of one pass."""
    view = scene.view
    if not view.has_run_steps:
        return _NO_STEPS
    return StepFacts(len(view.steps), view.steps.source, scene.step_peaks.peak_bytes)


def findings_of(scene: Scene) -> tuple[Finding, ...]:
    """All that the table's finders find in a scene, the most useful first."""
    verdict, peak_bytes = scene.verdict, scene.peak.requested_bytes
    least_bytes = least_advice(peak_bytes, verdict.requested_bytes if verdict else None)
    findings: list[Finding] = []
    for row, candidates in found_by_row(scene, FROM_RECORDING):
        worthwhile = that_matter(candidates, ROWS, least_bytes)
        if row.unless is None or not any(row.unless(scene, earlier) for earlier in findings):
            findings += worthwhile
    return ranked(findings, ROWS, failed=verdict is not None, peak_bytes=peak_bytes)


def _explain_nothing(trace: Trace, at: str | None) -> Explanation:
    """The explanation of a recording without a device."""
    return Explanation(
        recording=facts_of(trace),
        peak=None,
        heap=None,
        at=at or "peak",
        oom=None,
        steps=_NO_STEPS,
        fragmentation=None,
        leaks=(),
        ledger=(),
        findings=(),
    )


def explain_text(
    message: OomMessage, source: str, count: int = 1, messages: Sequence[OomMessage] = ()
) -> Explanation:
    """The explanation of an error text alone.

    Args:
        count: how many errors of its kind the text has.
        messages: all that it has.
    """
    # Only here: without an error's text its words need not be loaded.
    from vramlens.analyses.error_text.other_ranks import others_failed
    from vramlens.analyses.error_text.text_verdict import explain_message

    verdict = explain_message(message, log=getattr(messages, "engine_log", None))
    failed = OomVerdict(
        event=None,
        device=message.device,
        count=count,
        requested_bytes=None,
        tried_bytes=message.tried_bytes,
        allocated_bytes=message.live_bytes,
        reserved_bytes=message.reserved_bytes,
        free_bytes=message.free_bytes,
        largest_free_bytes=None,
        limit_bytes=message.allowed_bytes,
        wall=verdict.wall,
        cause=verdict.cause,
        short_by_bytes=verdict.short_by_bytes,
        place=_place(message.frame),
        library=_place(message.library_frame),
        library_source=message.library_source,
        headline=verdict.headline,
        unknowns=verdict.unknowns,
        others=others_failed(message, messages),
    )
    facts = RecordingFacts(
        source=source,
        torch=None,
        device=None,
        events=0,
        allocations=0,
        complete=False,
        missing=("a recording: this is an error's text alone",),
        settings={},
    )
    rows = ROWS if verdict.likely_holes_bytes is None else HOLES_FIRST
    return Explanation(
        recording=facts,
        peak=None,
        heap=None,
        at="oom",
        oom=failed,
        steps=_NO_STEPS,
        fragmentation=None,
        leaks=(),
        ledger=verdict.ledger,
        findings=ranked(verdict.findings, rows, failed=True),
    )


def _place(frame: Frame | None) -> Place | None:
    return None if frame is None else frame.place
