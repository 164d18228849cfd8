"""The answer in words: the headline, how it came to that, the figures of a failure.

Everything is one line of plain words: what came with the input has its control characters made
visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vramlens.analyses.leaks.recorded_leak import are_mostly_sure
from vramlens.ground.source_code import without_comment
from vramlens.ground.verdict import Verdict
from vramlens.ground.vocabulary import Cause, LedgerKind
from vramlens.report.document import Figure, size_figure
from vramlens.report.explain.origin import higher_before
from vramlens.report.wording import (
    capitalized,
    place_name,
    plain,
    share,
    short_place_name,
    visible,
    visible_sentences,
)
from vramlens.units import counted, format_size

if TYPE_CHECKING:
    from vramlens.analyses.explanation import Explanation, OomVerdict, Peak
    from vramlens.analyses.finding import Place
    from vramlens.analyses.memory.heap import Heap
    from vramlens.trace.meta import Meta

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
    "capacity": "Cause: capacity. The memory in use leaves too little for this request",
}
_CAUSE_MAY_BE_A_STORE = (
    "Cause: growth. Memory kept from earlier steps takes up the space: a leak, or a store that is"
    " not full yet"
)
_CAPACITY_WITH_GAPS = "Cause: capacity. The memory in use and its gaps leave too little free"
_NO_DEVICE = "There is no GPU memory to explain: the input shows no device"
_MOMENTS = {"peak": "at the peak", "oom": "at the failure", "end": "at the end"}


def has_failed(explanation: Explanation) -> bool:
    """True where it is about a failure that ended the program, or at which it was asked for."""
    is_asked_for = explanation.oom is not None and explanation.at == "oom"
    return explanation.failure is not None or is_asked_for


def headline(explanation: Explanation) -> str:
    """The answer in one sentence."""
    return visible(capitalized(_answer(explanation)))


def _answer(explanation: Explanation) -> str:
    oom, peak, heap = explanation.oom, explanation.peak, explanation.heap
    where = _on_device(explanation)
    if has_failed(explanation) and oom is not None:
        words = _predicted(oom.headline, explanation.recording.meta)
        return f"{words} ({where.strip()})" if where else words
    if peak is None or heap is None:
        return oom.headline if oom is not None else _NO_DEVICE
    if heap.event == peak.heap.event:
        return f"Peak {_peak(peak, where)}{_made_of(heap)}."
    moment = _MOMENTS.get(explanation.at, f"after event {heap.event:,}")
    size = format_size(heap.requested_bytes)
    return f"{size} requested {moment}{where}{_when(heap)}{_made_of(heap)}. Peak: {_peak(peak)}."


def _predicted(headline: str, meta: Meta) -> str:
    """The headline of a failure; of one that is only predicted with where that would be."""
    if not meta.is_prediction:
        return headline
    device = next(iter(meta.devices.values()), None)
    if device is None or device.total_bytes is None:
        return headline
    limit = device.process_limit_bytes
    full = (
        f"A card of {format_size(device.total_bytes)} would run"
        if limit is None
        else f"Within its limit of {format_size(limit)}, the script would run"
    )
    return headline.replace("Out of memory:", f"{full} out of memory:", 1)


def _on_device(explanation: Explanation) -> str:
    heap = explanation.heap
    several = len(explanation.recording.devices) > 1
    return f" on device {heap.device}" if heap is not None and several else ""


def _peak(peak: Peak, where: str = "") -> str:
    """The maximum of each counter, each by its name; they may be at different moments."""
    requested, allocated, reserved = (
        f"{format_size(getattr(peak, name))}{'' if name in peak.exact else ' or more'}"
        for name in ("requested_bytes", "allocated_bytes", "reserved_bytes")
    )
    other_peaks = f"peak allocated: {allocated}, peak reserved: {reserved}"
    return f"{requested} requested{where}{_when(peak.heap)} ({other_peaks})"


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
    text = f": {visible(without_comment(source))}" if source else ""
    return f"Inside the library, this is {short_place_name(place)}{text}"


def sentences(explanation: Explanation, *, with_earlier: bool = True) -> tuple[str, ...]:
    """How it came to that.

    Args:
        with_earlier: whether of a failure the requests that failed before it are told.
    """
    return visible_sentences(_explained(explanation, with_earlier=with_earlier))


def _explained(explanation: Explanation, *, with_earlier: bool) -> Iterator[str]:
    oom, peak, failed = explanation.oom, explanation.peak, has_failed(explanation)
    yield from filter(is_cut_short, explanation.recording.missing)
    if oom is not None:
        if failed:
            yield from _failure_sentences(explanation, oom, with_earlier=with_earlier)
        else:
            yield _went_on(oom)
    counters = explanation.moment
    if counters is not None and explanation.at not in ("peak", "oom"):
        then = "At the end" if explanation.at == "end" else "After that event"
        is_prediction = explanation.recording.meta.is_prediction
        how = "estimated: predicted" if is_prediction else "exact: the allocator was replayed"
        yield (
            f"{then}, {format_size(counters.allocated_bytes)} were allocated and"
            f" {format_size(counters.reserved_bytes)} reserved ({how})"
        )
    if peak is not None and not failed:
        yield from filter(None, (peak.shape, higher_before(explanation.recording, peak)))


def is_cut_short(missing: str) -> bool:
    """Whether what is missing is the file's own end, so that nothing of the answer is whole."""
    return missing.startswith("the file ends early")


def _failure_sentences(
    explanation: Explanation, oom: OomVerdict, *, with_earlier: bool
) -> Iterator[str]:
    """Yields what refused the request and why, who asked for it and where."""
    is_memory = all(finding.id != "not_memory" for finding in explanation.findings)
    if is_memory and (wall := _wall_words(explanation, oom)):
        yield wall
    if oom.cause is not None:
        yield _cause_words(explanation, oom, oom.cause)
    if oom.need is not None and oom.need.reason:
        yield visible(capitalized(oom.need.reason))
    if oom.place is not None:
        yield f"Requested at {place_name(oom.place)}"
    if oom.library is not None:
        yield _library_line(oom.library, oom.library_source)
    # Without figures, one failure in several lines of a log looks like several.
    if with_earlier and _several_failed(oom) and oom.wall != "unknown":
        yield _last_of_several(explanation, oom)
    if oom.others:
        yield oom.others


def _wall_words(explanation: Explanation, oom: OomVerdict) -> str:
    """What refused the request; of other processes how much they use, unless the headline says it."""
    if oom.wall != "other_process":
        return _WALLS.get(oom.wall, _WALLS["unknown"])
    if "Process " in oom.headline:
        return ""
    used = sum(row.bytes for row in explanation.ledger if row.kind == LedgerKind.OTHER_PROCESSES)
    return f"Other processes use {format_size(used)} of the GPU" if used else _WALLS[oom.wall]


def _cause_words(explanation: Explanation, oom: OomVerdict, cause: str) -> str:
    if cause == Cause.LEAK and not are_mostly_sure(explanation.leaks):
        return _CAUSE_MAY_BE_A_STORE
    if cause == Cause.CAPACITY and _fits_without_gaps(oom):
        return _CAPACITY_WITH_GAPS
    if cause == Cause.CAPACITY and oom.need is not None and oom.need.floor_bytes is not None:
        there_is = "the limit" if oom.wall == "process_limit" else "the GPU has left for it"
        return f"Cause: capacity. Even without gaps, {oom.need.subject} needs more than {there_is}"
    return _CAUSES.get(cause, plain(cause).capitalize())


def _fits_without_gaps(oom: OomVerdict) -> bool:
    """Whether what is known to be needed would fit in one piece: then gaps are a part of it."""
    if oom.need is None or oom.need.floor_bytes is None or oom.reserved_bytes is None:
        return False
    could_reserve = oom.limit_bytes or oom.reserved_bytes + (oom.free_bytes or 0)
    return oom.need.floor_bytes <= could_reserve


def _last_of_several(explanation: Explanation, oom: OomVerdict) -> str:
    is_gpu_unsaid = explanation.peak is None and oom.device is not None
    gpu = f"; this one failed on GPU {oom.device}" if is_gpu_unsaid else ""
    earlier = oom.count - 1
    return f"{counted(earlier, 'request')} had failed before it{_workspaces(oom, earlier)}{gpu}"


def _workspaces(oom: OomVerdict, earlier: int) -> str:
    """What earlier failures were where cuDNN asked for them: it goes on with less."""
    if not oom.refused_workspaces:
        return ""
    some = "" if oom.refused_workspaces == earlier else f"{oom.refused_workspaces:,} of them "
    return f", {some}likely for larger workspaces of cuDNN, which is harmless"


def _went_on(oom: OomVerdict) -> str:
    times = "A request" if oom.count == 1 else counted(oom.count, "request")
    return f"{times} failed, but the program went on (--at oom shows that moment). {oom.headline}"


def failure_figures(explanation: Explanation) -> tuple[Figure, ...]:
    """The numbers of a failure, in the order in which they explain it."""
    oom = explanation.oom
    if oom is None or not has_failed(explanation):
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
    figures = tuple(size_figure(size, words) for size, words in numbers if size is not None)
    # Of a message without other numbers the headline has said it.
    return () if oom.requested_bytes is None and len(figures) == 1 else figures


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


def holders_title(explanation: Explanation) -> str:
    """The moment that the table of holders is about; "" where there is none."""
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
