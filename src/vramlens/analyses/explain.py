"""Puts the analyses together: all there is to say about one recording, or about one error text."""

from __future__ import annotations

from collections.abc import Sequence

from vramlens.analyses.attribution.attribution import Attribution, attribute
from vramlens.analyses.error_text.other_ranks import others_failed
from vramlens.analyses.error_text.text_verdict import explain_message
from vramlens.analyses.explanation import Explanation, OomVerdict, Peak, RecordingFacts, StepFacts
from vramlens.analyses.facts import facts_of
from vramlens.analyses.failure.allocator_retry import allocator_retry
from vramlens.analyses.failure.oom import Failure, Outside, failure_of, verdict_of
from vramlens.analyses.failure.settings_hint import expandable_finding
from vramlens.analyses.failure.surroundings import ledger_rows, message_for, outside_of
from vramlens.analyses.failure.unconsumed_forward import unconsumed_forward
from vramlens.analyses.finding import Finding, Place
from vramlens.analyses.findings import stranded, usage
from vramlens.analyses.findings.buffers import operator_buffers
from vramlens.analyses.findings.copies import loaded_copies
from vramlens.analyses.findings.eval_with_grad import eval_with_grad, evaluation_of
from vramlens.analyses.findings.first_step import first_step_to_come
from vramlens.analyses.findings.gradients import gradients_kept
from vramlens.analyses.findings.other_devices import other_devices
from vramlens.analyses.findings.unused_graph import unused_graph
from vramlens.analyses.leaks.leak_size import sized
from vramlens.analyses.leaks.leaks import (
    external_leak,
    leak_finding,
    leaks_at,
    least_that_matters,
    predicted,
)
from vramlens.analyses.leaks.sampled_growth import sampled_growth
from vramlens.analyses.memory.fragmentation import Fragmentation, fragmentation_at
from vramlens.analyses.memory.heap import heap_at
from vramlens.analyses.memory.timeline import shape_of, step_peaks
from vramlens.errors import UsageError
from vramlens.ground.verdict import Verdict
from vramlens.read.oom_text import OomMessage
from vramlens.trace import DeviceTrace, Trace
from vramlens.units import counted, format_size


def choose_device(trace: Trace, device: int | None = None) -> DeviceTrace | None:
    """The device that answers are about: the one asked for, else the one with the highest requested
    peak.

    Raises:
        UsageError: the recording knows no such device.
    """
    if device is None:
        device = trace.main_device
        return None if device is None else trace.devices[device]
    if device not in trace.devices:
        known = ", ".join(map(str, trace.devices)) or "none"
        raise UsageError(f"the recording has no device {device} (it has: {known})")
    return trace.devices[device]


def peak_of(view: Attribution) -> Peak:
    """The counters' maxima on one device and the heap where requested bytes are highest."""
    device = view.device
    # What was there before the first event may once have been more.
    from_the_start = len(device.events) > 0 and not device.reserved.base_bytes
    proven = from_the_start and device.whole and device.orphan_events == 0
    return Peak(
        device=device.device,
        requested_bytes=device.requested.peak_bytes,
        allocated_bytes=device.allocated.peak_bytes,
        active_bytes=device.active.peak_bytes,
        reserved_bytes=device.reserved.peak_bytes,
        exact=("requested_bytes", "reserved_bytes") if proven else (),
        heap=heap_at(view, device.requested.peak_event),
        shape=shape_of(view, step_peaks(view)),
    )


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
    facts = facts_of(trace)
    if chosen is None:
        return Explanation(
            facts, None, None, at or "peak", None, StepFacts(0, None, ()), None, (), (), ()
        )
    view = attribute(trace, chosen) if view is None else view
    peak = peak_of(view)
    peaks = step_peaks(view)
    message = message_for(view, messages)
    outside = outside_of(view, message, total_bytes)
    failure = failure_of(view, outside)
    growth = [
        leak
        for leak in leaks_at(view, failure.request.event if failure else None)
        if leak.fix is not None
    ]
    leaks = tuple(
        leak for leak in growth if leak.sure and leak.rows is not None
    )  # tensors, not stranded caches
    fragmentation = fragmentation_at(
        view, failure.request.event if failure else chosen.requested.peak_event
    )
    failed: OomVerdict | None = None
    findings: list[Finding] = []
    if failure is not None:
        failed = verdict_of(view, failure, leaks, peaks, outside)
        findings += _about_failure(failed, failure, outside, fragmentation)
        findings.append(expandable_finding(view, failure, outside))
        findings += allocator_retry(view, failure)
        findings += unconsumed_forward(view, failure)
    if at is None:
        at = "oom" if failed is not None and not failed.survived else "peak"
    event = moment(chosen, at)
    peak_bytes = peak.requested_bytes
    heap = peak.heap if event == peak.heap.event else heap_at(view, event)
    needed = heap_at(view, failure.request.event) if failure else peak.heap
    if failed is not None and failed.survived:
        growth = [leak for leak in leaks_at(view) if leak.fix is not None]
    ended = failed is not None and not failed.survived
    growth = list(
        sized(
            (*growth, *external_leak(view)),
            least_that_matters(view, outside, total_bytes),
            peak_bytes,
        )
    )
    prediction = None if ended else predicted(view, tuple(growth), outside, total_bytes)
    findings += [leak_finding(leak, prediction) for leak in growth if not leak.is_small]
    findings += sampled_growth(view, tuple(growth), outside, failed=ended)
    evaluation = evaluation_of(view)
    marked = eval_with_grad(view, evaluation, failure.request.event if failure else None)
    findings += marked or unused_graph(view)  # the same bytes; what marks say is surer
    findings += gradients_kept(view) + loaded_copies(view) + first_step_to_come(view)
    at_end = fragmentation if failure else fragmentation_at(view, len(chosen.events) - 1)
    findings += operator_buffers(view) + stranded.stranded_streams(view, at_end)
    findings += stranded.private_pools(view, fragmentation) + usage.unused_reserve(view)
    findings += other_devices(trace, chosen)
    unused = evaluation.kept_at(needed.event) if evaluation is not None else 0
    findings += usage.activations(view, needed, leaks, unused) + usage.optimizer_state(needed)
    findings = _that_matter(findings, peak.requested_bytes, failed)
    if failed is not None and ended:
        findings += usage.largest_line(needed, failed, findings)
    return Explanation(
        recording=facts,
        peak=peak,
        heap=heap,
        at=at,
        oom=failed,
        steps=StepFacts(len(view.steps), view.steps.source, peaks.peak_bytes),
        fragmentation=fragmentation,
        leaks=tuple(growth),
        ledger=ledger_rows(view, message, outside, total_bytes),
        findings=tuple(_ranked(findings, failed, peak_bytes=peak_bytes)),
    )


def explain_text(
    message: OomMessage, source: str, count: int = 1, messages: Sequence[OomMessage] = ()
) -> Explanation:
    """The explanation of an error text alone.

    Args:
        count: how many errors of its kind the text has.
        messages: all that it has.
    """
    verdict = explain_message(message, log=getattr(messages, "engine_log", None))
    frame = message.frame
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
        place=Place(frame.file, frame.line, frame.function) if frame is not None else None,
        headline=verdict.headline,
        unknowns=verdict.unknowns,
        others=others_failed(message, messages),
    )
    facts = RecordingFacts(
        source, None, None, 0, 0, False, ("a recording: this is an error's text alone",), {}
    )
    steps = StepFacts(0, None, ())
    return Explanation(
        facts,
        None,
        None,
        "oom",
        failed,
        steps,
        None,
        (),
        verdict.ledger,
        tuple(
            _ranked(
                list(verdict.findings), failed, holes_first=verdict.likely_holes_bytes is not None
            )
        ),
    )


def _about_failure(
    verdict: OomVerdict, failure: Failure, outside: Outside, fragmentation: Fragmentation
) -> list[Finding]:
    """What the cause of a failure calls for."""
    found = []
    if verdict.cause == "fragmentation":
        found.append(
            Finding(
                id="fragmented_request",
                verdict=Verdict.LIKELY,
                title=verdict.headline,
                bytes=verdict.requested_bytes,
                place=verdict.place,
                evidence=tuple(
                    f"{counted(pin.blocks, 'block')} of {pin.place} keep {format_size(pin.held_bytes)} apart, the "
                    f"oldest for {counted(pin.age_events, 'event')}"
                    for pin in fragmentation.pinned_by[:2]
                    if pin.held_bytes
                ),
                fix="allocate the long-lived tensors before the short-lived ones, or the large one first; "
                f"then {format_size(verdict.requested_bytes or 0)} fit where the holes are now",
            )
        )
    if verdict.wall == "process_limit":
        found.append(
            Finding(
                id="process_limit",
                verdict=Verdict.PROVEN,
                title=f"The process's own limit refused it: the device had {format_size(verdict.free_bytes or 0)} free",
                bytes=verdict.short_by_bytes,
                fix=_raise_limit(failure, outside),
            )
        )
    return found


def _raise_limit(failure: Failure, outside: Outside) -> str:
    needed = failure.reserved_bytes + failure.tried_bytes
    if outside.total_bytes:
        fraction = -(-needed * 10_000 // outside.total_bytes) / 10_000
        return (
            f"raise it: torch.cuda.set_per_process_memory_fraction({fraction:.4f}) allows at least "
            f"the {format_size(needed)} that this request needs"
        )
    return (
        "raise the fraction given to torch.cuda.set_per_process_memory_fraction: this request needs "
        f"{format_size(needed)} in all, at least"
    )


_ORDER = (Verdict.PROVEN, Verdict.LIKELY, Verdict.POSSIBLE, Verdict.NOT_A_PROBLEM)
# What a failure hit and why comes before what merely takes much room.
_FIRST = (
    "request_too_large",
    "allocator_retry",
    "fragmented_request",
    "leak",
    "process_limit",
    "other_process",
    "device_full",
)


_OF_ANY_SIZE = (*_FIRST, "sampled_growth", "other_device", "expandable_segments")
_LEAST_SHARE = 0.01


def _that_matter(
    findings: list[Finding], peak_bytes: int, failed: OomVerdict | None
) -> list[Finding]:
    """Without advice whose bytes are far below what matters: of the peak, and of the request
    that failed.
    """
    wanted = min(peak_bytes, (failed.requested_bytes if failed is not None else None) or peak_bytes)
    return [
        finding
        for finding in findings
        if finding.fix is None
        or finding.bytes is None
        or finding.id in _OF_ANY_SIZE
        or finding.bytes >= _LEAST_SHARE * wanted
    ]


def _ranked(
    findings: list[Finding],
    failed: OomVerdict | None,
    *,
    holes_first: bool = False,
    peak_bytes: int = 0,
) -> list[Finding]:
    """The most useful first: what saves most and can be acted on; what would not help, last."""
    first = (
        (*(("expandable_segments",) if holes_first else ()), *_FIRST) if failed is not None else ()
    )

    def place_of(finding: Finding) -> int:
        frees_little = finding.id == "leak" and (finding.bytes or 0) < _LEAST_SHARE * peak_bytes
        return first.index(finding.id) if finding.id in first and not frees_little else len(first)

    return sorted(
        findings,
        key=lambda finding: (
            finding.verdict == Verdict.NOT_A_PROBLEM or finding.fix is None,
            place_of(finding),
            -(finding.bytes or 0) * (0.5 if finding.verdict == Verdict.POSSIBLE else 1),
            _ORDER.index(finding.verdict),
        ),
    )
