"""The story: what an explanation says, in order, before it is laid out as text or Markdown.

Everything in it is one line of plain words: what came with the input has its control characters
    made visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramlens.analyses.error_text.message_sums import ROUNDING
from vramlens.ground.verdict import Verdict
from vramlens.leak.claim import growth_words
from vramlens.report.explain.advice import NextStep, next_step
from vramlens.report.explain.foreign_advice import step_for_others
from vramlens.report.explain.holder_tables import HolderList, table_of
from vramlens.report.explain.origin import higher_before, origin_of
from vramlens.report.explain.replayed_advice import step_after_replay
from vramlens.report.wording import (
    capitalized,
    place_name,
    plain,
    sentence,
    share,
    short_place_name,
    visible,
)
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation, OomVerdict, Peak
    from vramlens.analyses.finding import Finding, Place
    from vramlens.analyses.memory.heap import Heap
    from vramlens.analyses.memory.ledger import LedgerRow
    from vramlens.leak.leak import Leak

_WALLS = {
    "process_limit": "This process reached its memory limit; the GPU itself was not full",
    "device": "The GPU is full",
    "other_process": "Other processes use the rest of the GPU",
    "host": "",  # the headline says so already, and how sure it is
    "unknown": "This input does not show what refused the request",
}
_CAUSES = {
    "fragmentation": "Cause: fragmentation. The free memory is split into blocks that are too "
    "small",
    "leak": "Cause: a leak. Memory kept from earlier steps takes up the space",
    "spike": "Cause: a spike. This step needs more than twice as much as any earlier step",
    "capacity": "Cause: capacity. The memory in use leaves too little free",
}
_KINDS = {
    "pytorch_allocated": "tensors in PyTorch",
    "pytorch_private_pools": "free in PyTorch's private pools (CUDA graphs)",
    "pytorch_cached": "cached by PyTorch but not in use",
    "this_process": "this process",
    "this_process_other": "this process, outside PyTorch (CUDA context, libraries, NCCL)",
    "outside_pytorch": "outside PyTorch (CUDA contexts, libraries, other processes)",
    "other_processes": "other processes",
    "nccl": "NCCL buffers",
    "driver_reserved": "reserved by the driver and its firmware",
    "free": "free",
    "unknown": "used by something that this input does not show",
}


@dataclass(frozen=True, slots=True)
class CountedFigure:
    """One number and the words that say what it is."""

    size_bytes: int
    words: str


@dataclass(frozen=True, slots=True)
class FindingClaim:
    """A finding in words: the claim with its place, the evidence, the fix, the bytes that it is
    about.
    """

    verdict: Verdict
    title: str
    evidence: tuple[str, ...]
    fix: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class Story:
    """What there is to say.

    Attributes:
        failed: whether it is about a failure that ended the program.
        headline: the answer.
        sentences: how it came to that.
        figures: the numbers of a failure.
        table: who holds the memory; None where the input cannot tell.
        table_title: which moment the table is about.
        ledger: where all of the device's memory is.
        ledger_when: when that was, where the recording measured it itself; "" elsewhere.
        claims: findings with something to do, the most useful first.
        refuted: what would not help.
        notes: findings that ask for nothing.
        growth: memory that every step leaves behind.
        steps: the steps in one sentence; "" where unknown.
        unknown: what is missing or cannot be told.
        next: the one next step.
        origin: which run the recording comes from; nothing for a bare snapshot.
        source: the file that was read; "" where it was none.
    """

    failed: bool
    headline: str
    sentences: tuple[str, ...]
    figures: tuple[CountedFigure, ...]
    table: HolderList | None
    table_title: str
    ledger: tuple[CountedFigure, ...]
    claims: tuple[FindingClaim, ...]
    refuted: tuple[str, ...]
    notes: tuple[str, ...]
    growth: tuple[str, ...]
    steps: str
    unknown: tuple[str, ...]
    next: NextStep
    origin: tuple[str, ...] = ()
    ledger_when: str = ""
    source: str = ""


def story_of(explanation: Explanation, by: str) -> Story:
    """What an explanation says, with memory grouped by one of ``tables.GROUPINGS``."""
    oom, heap = explanation.oom, explanation.heap
    failed = explanation.failure is not None or (oom is not None and explanation.at == "oom")
    claims, refuted, notes = _sorted_findings(explanation.findings)
    step = step_after_replay(explanation) or step_for_others(explanation) or next_step(explanation)
    return Story(
        failed=failed,
        headline=visible(capitalized(_headline(explanation, failed))),
        sentences=_visible_sentences(_sentences(explanation, failed)),
        figures=_figures(explanation) if failed else (),
        table=None if heap is None else table_of(heap, by),
        table_title=_table_title(explanation),
        ledger=_ledger(explanation),
        claims=claims,
        refuted=refuted,
        notes=notes,
        growth=tuple(visible(_growth(leak)) for leak in _not_yet_claimed(explanation)),
        steps=_steps(explanation),
        unknown=_visible_sentences(_unknown(explanation, failed)),
        next=NextStep(visible(step.why), tuple(visible(line) for line in step.lines)),
        origin=origin_of(explanation.recording),
        ledger_when=_ledger_when(explanation),
        source=_file_name(explanation),
    )


def _file_name(explanation: Explanation) -> str:
    source = explanation.recording.source
    return source if source != "-" else ""


def _visible_sentences(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(visible(sentence(text)) for text in texts)


def _ledger(explanation: Explanation) -> tuple[CountedFigure, ...]:
    """Where the device's memory is; an error's text that does not say what is free leaves that
    open, too.
    """
    rows, oom = explanation.ledger, explanation.oom
    is_free_open = explanation.peak is None and oom is not None and oom.free_bytes is None
    return tuple(
        CountedFigure(
            row.bytes,
            ("free, or " if is_free_open and row.kind == "unknown" else "") + _part(row, rows),
        )
        for row in rows
        if row.bytes
    )


def _ledger_when(explanation: Explanation) -> str:
    if "ledger.json" not in explanation.recording.members:
        return ""
    return " when the request failed" if explanation.oom is not None else " at the end"


def _part(row: LedgerRow, rows: tuple[LedgerRow, ...]) -> str:
    words = row.note if row.note == ROUNDING else _KINDS.get(row.kind, plain(row.kind))
    if row.kind == "this_process_other" and any(other.kind == "nccl" for other in rows):
        words = words.replace("context, libraries, NCCL", "context and libraries")
    return words + (" (inferred)" if row.confidence == "inferred" else "")


# The answer


def _headline(explanation: Explanation, failed: bool) -> str:
    oom, peak, heap = explanation.oom, explanation.peak, explanation.heap
    where = _on_device(explanation)
    if failed and oom is not None:
        return f"{oom.headline} ({where.strip()})" if where else oom.headline
    if peak is None or heap is None:
        return oom.headline if oom is not None else _NO_DEVICE
    if heap.event == peak.heap.event:
        return f"Peak {_peak(peak, where)}{_made_of(heap)}."
    moment = _MOMENTS.get(explanation.at, f"after event {heap.event:,}")
    size = format_size(heap.requested_bytes)
    return f"{size} requested {moment}{where}{_when(heap)}{_made_of(heap)}. Peak: {_peak(peak)}."


_NO_DEVICE = "There is no GPU memory to explain: the input shows no device"
_MOMENTS = {"peak": "at the peak", "oom": "when the request failed", "end": "at the end"}


def _on_device(explanation: Explanation) -> str:
    heap = explanation.heap
    several = len(explanation.recording.devices) > 1
    return f" on device {heap.device}" if heap is not None and several else ""


def _peak(peak: Peak, where: str = "") -> str:
    """Both maxima; that of reserved bytes may be at another moment."""
    requested, reserved = format_size(peak.requested_bytes), format_size(peak.reserved_bytes)
    requested += "" if "requested_bytes" in peak.exact else " or more"
    reserved += "" if "reserved_bytes" in peak.exact else " or more"
    return f"{requested} requested{where}{_when(peak.heap)} (peak reserved: {reserved})"


def _when(heap: Heap) -> str:
    return "" if heap.step is None else f" in step {heap.step}"


def _made_of(heap: Heap) -> str:
    """The largest category and the largest line, as far as they are known."""
    parts = []
    if heap.by_category:
        name, category = max(heap.by_category.items(), key=lambda item: item[1].bytes)
        if name not in ("other", "unknown"):
            sure = "" if category.verdict == Verdict.PROVEN else f" ({category.verdict})"
            parts.append(f"{share(category.bytes, heap.requested_bytes)} {plain(name)}{sure}")
    if heap.by_line:
        line = heap.by_line[0]
        parts.append(f"largest line {short_place_name(line.place)}, {format_size(line.bytes)}")
    return f": {', '.join(parts)}" if parts else ""


def _several_failed(oom: OomVerdict) -> bool:
    """Whether more than one request failed: of host memory, a launcher only repeats the kernel."""
    return oom.count > 1 and oom.wall != "host"


def _library_line(place: Place, source: str) -> str:
    """The library's line that the user's led to, with its text."""
    text = f": {visible(source)}" if source else ""
    return f"Inside the library, this is {short_place_name(place)}{text}"


def _sentences(explanation: Explanation, failed: bool) -> Iterator[str]:
    """Yields how it came to that."""
    oom, peak = explanation.oom, explanation.peak
    if oom is not None:
        yield from _failure_sentences(explanation, oom) if failed else [_went_on(oom)]
    counters = explanation.moment
    if counters is not None and explanation.at not in ("peak", "oom"):
        then = "At the end" if explanation.at == "end" else "After that event"
        yield (
            f"{then}, {format_size(counters.allocated_bytes)} were allocated and"
            f" {format_size(counters.reserved_bytes)} reserved (exact: the allocator was replayed)"
        )
    if peak is not None and not failed:
        yield from filter(None, (peak.shape, higher_before(explanation.recording, peak)))


def _failure_sentences(explanation: Explanation, oom: OomVerdict) -> Iterator[str]:
    """Yields what refused the request and why, who asked for it and where."""
    if wall := _WALLS.get(oom.wall, _WALLS["unknown"]):
        yield wall
    if oom.cause is not None:
        yield _CAUSES.get(oom.cause, plain(oom.cause).capitalize())
    if oom.need is not None and oom.need.reason:
        yield capitalized(oom.need.reason)
    if oom.place is not None:
        yield f"Requested at {place_name(oom.place)}"
    if oom.library is not None:
        yield _library_line(oom.library, oom.library_source)
    if _several_failed(oom):
        yield _last_of_several(explanation, oom)
    if oom.others:
        yield oom.others


def _last_of_several(explanation: Explanation, oom: OomVerdict) -> str:
    is_gpu_unsaid = explanation.peak is None and oom.device is not None
    gpu = f", on GPU {oom.device}" if is_gpu_unsaid else ""
    return f"This was the last of {counted(oom.count, 'failed request')}{gpu}"


def _went_on(oom: OomVerdict) -> str:
    times = "A request" if oom.count == 1 else counted(oom.count, "request")
    return f"{times} failed, but the program went on (--at oom shows that moment). {oom.headline}"


def _figures(explanation: Explanation) -> tuple[CountedFigure, ...]:
    """The numbers of a failure, in the order in which they explain it."""
    oom = explanation.oom
    if oom is None:
        return ()
    # Where the holders are not known the ledger follows, and says what is reserved and free.
    are_holders_known = explanation.heap is not None or not explanation.ledger
    numbers = [_request(oom)]
    if not are_holders_known or oom.reserved_bytes is None:
        numbers.append((oom.limit_bytes, "limit of this process"))
    if are_holders_known:
        largest = "largest free block" if oom.largest_free_bytes else "free in the cache"
        numbers += [
            _use_of_pytorch(oom),
            (oom.largest_free_bytes, f"{largest} for this request"),
            (oom.free_bytes, "free on the GPU"),
        ]
    return tuple(CountedFigure(size, words) for size, words in numbers if size is not None)


_Number = tuple[int | None, str]


def _request(oom: OomVerdict) -> _Number:
    requested, tried = oom.requested_bytes, oom.tried_bytes
    if requested is None:
        return tried, "requested" if oom.wall == "host" else "requested from the driver"
    if tried is None or tried == requested:
        return requested, "requested"
    return requested, f"requested ({format_size(tried)} from the driver)"


def _use_of_pytorch(oom: OomVerdict) -> _Number:
    reserved, allocated, limit = oom.reserved_bytes, oom.allocated_bytes, oom.limit_bytes
    if reserved is None:
        return allocated, "allocated by PyTorch"
    of_limit = f" (limit: {format_size(limit)})" if limit is not None else ""
    used = f"; {format_size(allocated)} of that allocated" if allocated is not None else ""
    return reserved, f"reserved by PyTorch{of_limit}{used}"


# The evidence


def _table_title(explanation: Explanation) -> str:
    heap, oom = explanation.heap, explanation.oom
    if heap is None:
        return ""
    moment = _moment_of(heap, explanation)
    in_use = format_size(heap.requested_bytes)
    if moment == "oom" and oom is not None and oom.allocated_bytes is not None:
        # The figures above it count what the allocator took for the same requests.
        in_use += " (requested)" if in_use != format_size(oom.allocated_bytes) else ""
    when = _MOMENTS.get(moment, f"after event {heap.event:,}")
    return f"{in_use} in use {when}{_on_device(explanation)}"


def _moment_of(heap: Heap, explanation: Explanation) -> str:
    """The failure or the peak where the heap is of that moment, whichever was asked for."""
    oom, peak = explanation.oom, explanation.peak
    if oom is not None and heap.event == oom.event:
        return "oom"
    is_peak = peak is not None and heap.event == peak.heap.event
    return "peak" if is_peak and explanation.at != "end" else explanation.at


def _sorted_findings(
    findings: tuple[Finding, ...],
) -> tuple[tuple[FindingClaim, ...], tuple[str, ...], tuple[str, ...]]:
    """What to do, what would not help, and what else is so."""
    claims, refuted, notes = [], [], []
    for finding in findings:
        if finding.fix is not None:
            claims.append(_claim(finding))
        elif finding.bytes == 0 or finding.verdict == Verdict.NOT_A_PROBLEM:
            refuted.append(visible(sentence(finding.title)))
        else:
            sure = "" if finding.verdict == Verdict.PROVEN else f" ({finding.verdict})"
            notes.append(visible(sentence(f"{finding.title}{sure}")))
    return tuple(claims), tuple(refuted), tuple(notes)


def _claim(finding: Finding) -> FindingClaim:
    title = finding.title.strip().rstrip(".")
    if finding.place is not None and finding.place.file not in title:
        title = f"{title} ({place_name(finding.place)})"
    return FindingClaim(
        verdict=finding.verdict,
        title=visible(sentence(title)),
        evidence=_visible_sentences(filter(str.strip, finding.evidence)),
        fix=visible((finding.fix or "").strip()),
        size_bytes=finding.bytes,
    )


def _not_yet_claimed(explanation: Explanation) -> list[Leak]:
    """Leaks of which no finding speaks."""
    claimed_places = {finding.place for finding in explanation.findings if finding.id == "leak"}
    return [
        leak for leak in explanation.leaks if leak.place not in claimed_places and not leak.is_small
    ]


def _growth(leak: Leak) -> str:
    where = f", at {place_name(leak.place)}" if leak.place is not None else ""
    fix = f" {sentence(leak.advice)}" if leak.advice else ""
    return f"{growth_words(leak)}{where} ({leak.verdict}).{fix}"


def _steps(explanation: Explanation) -> str:
    steps = explanation.steps
    if not steps.count:
        return ""
    found_by = f", detected by {steps.source}" if steps.source else ""
    counted_steps = f"{counted(steps.count, 'step')}{found_by}"
    from_zero = " Step 0 is the first recorded." if steps.count > 1 else ""
    peaks = steps.peak_bytes
    if not peaks:
        return f"{counted_steps}."
    if max(peaks) - min(peaks) <= max(peaks) // 100:
        return (
            f"{counted_steps}. {'Its' if len(peaks) == 1 else 'Each'} peak: {format_size(max(peaks))} "
            f"requested.{from_zero}"
        )
    shown = [
        format_size(size) for size in (peaks if len(peaks) <= 6 else (*peaks[:3], *peaks[-3:]))
    ]
    if len(peaks) > 6:
        shown.insert(3, "…")
    return f"{counted_steps}. Peaks (requested): {', '.join(shown)}.{from_zero}"


def _unknown(explanation: Explanation, failed: bool) -> list[str]:
    facts, oom = explanation.recording, explanation.oom
    # That an error's text is no recording need not be said; what it leaves open is among the
    # unknowns.
    sentences = list(facts.missing) if explanation.peak is not None or oom is None else []
    if not facts.complete and not sentences and explanation.peak is not None:
        sentences.append("The recording is incomplete")
    if oom is not None and failed:
        sentences.extend(oom.unknowns)
        if oom.need is not None and oom.need.basis is None:
            low_size = format_size(oom.need.low_bytes)
            sentences.append(
                f"What this step needs to finish: at least {low_size}. No earlier step is similar"
            )
    return sentences
