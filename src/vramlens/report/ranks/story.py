"""The story of ranks: the verdict, what differs and why, the ranks, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from vramlens.ground.verdict import Verdict
from vramlens.report.document import (
    Blank,
    Column,
    Command,
    Document,
    Drawing,
    Heading,
    Items,
    LastColumn,
    Part,
    Sentences,
    Table,
)
from vramlens.report.text import BOLD
from vramlens.report.wording import and_more, at_place, quoted, visible
from vramlens.units import agreeing, counted, first_of, format_size

if TYPE_CHECKING:
    from vramlens.analyses.finding import Finding
    from vramlens.ranks import Comparison, RankDifference, RankSummary
    from vramlens.ranks.rank_failures import FailedRank
    from vramlens.trace.flight import FlightRecord

_MOST_ROWS = 8
_MOST_STRIPS = 16
_MOST_DIFFERENCES = 6
_WIDEST_STRIP = 48
_MOST_MISSING = 12
_LONGEST_ERROR = 160


def comparison_document(comparison: Comparison) -> Document:
    """The answer of ``vramlens ranks`` in parts."""
    if comparison.is_no_job:
        return _unrelated_recordings(comparison)
    return Document(
        (
            Heading(headline(comparison)),
            *_difference_parts(comparison),
            *_failure_parts(comparison),
            *_table_parts(comparison),
            *_strip_parts(comparison),
            *_communication_parts(comparison),
            Sentences(tuple(map(visible, comparison.notes)), "note: "),
            Blank(),
            _next(comparison),
        )
    )


def _unrelated_recordings(comparison: Comparison) -> Document:
    """The story of recordings that are not of a job: each by its name, for none of them is a rank."""
    by_peak = sorted(comparison.ranks, key=lambda recording: -recording.peak_requested_bytes)
    columns = (
        Column("peak requested", width=16),
        Column("peak reserved"),
        Column("steps", width=6),
        Column("recording", is_right=False),
    )
    folder = _common_folder([recording.source for recording in by_peak])
    rows = tuple(_recording_row(recording, folder) for recording in by_peak[:_MOST_ROWS])
    unlisted = len(by_peak) - len(rows)
    left_out = (and_more(unlisted, "recording", "--json"),) if unlisted else ()
    return Document(
        (
            Heading(headline(comparison)),
            Blank(),
            Table(
                columns,
                rows,
                LastColumn.CUT_INSIDE,
                title="recording",
                margin="",
                header_style=BOLD,
            ),
            Sentences(left_out, is_aside=True),
            Sentences(tuple(map(visible, comparison.notes)), "note: "),
            Blank(),
            Command(
                "look at each by itself",
                (f"vramlens explain {quoted(by_peak[0].source)}",),
                is_broken=True,
            ),
        )
    )


def _common_folder(paths: Sequence[str]) -> str:
    """The folder that all files lie in, with its slash; empty where they have none in common."""
    if len(paths) < 2:
        return ""
    levels = zip(*(path.split("/")[:-1] for path in paths), strict=False)
    shared = takewhile(lambda level: len(set(level)) == 1, levels)
    return "".join(f"{level[0]}/" for level in shared)


def _recording_row(recording: RankSummary, folder: str) -> tuple[str, ...]:
    return (
        format_size(recording.peak_requested_bytes),
        format_size(recording.peak_reserved_bytes),
        f"{len(recording.step_peaks):,}",
        visible(recording.source.removeprefix(folder)),
    )


def headline(comparison: Comparison) -> str:
    """The answer in one sentence."""
    if comparison.is_no_job:
        return (
            f"These {len(comparison.ranks)} recordings are not one job: they look like different"
            " programs, so nothing was compared."
        )
    missing = _missing_words(comparison.missing)
    if comparison.differences:
        return f"{difference_title(comparison.differences[0])}{missing}."
    if comparison.failures.failed:
        first = comparison.failures.failed[0]
        where = at_place(first.place)
        peers = "; no rank uses more than its peers" if comparison.ranks else ""
        return f"Rank {first.rank} {failed_words(first, 'first')}{where}{peers}{missing}."
    if comparison.shared and not comparison.by_device:
        return f"{shared_title(comparison.shared[0])}{missing}."
    if not comparison.ranks and len(comparison.flights) == 1:
        return _one_flight(*next(iter(comparison.flights.items())))
    return f"{_agreement(comparison)}{missing}."


def _missing_words(missing: Sequence[int]) -> str:
    """The ranks of which there is nothing, as the end of a sentence."""
    if not missing:
        return ""
    noun = agreeing(len(missing), "rank", "ranks")
    return f"; {noun} {first_of(missing, _MOST_MISSING)} left no files"


def _agreement(comparison: Comparison) -> str:
    """The answer where no rank differs, and none failed."""
    noun = "device" if comparison.by_device else "rank"
    count = max(len(comparison.ranks), len(comparison.flights))
    if count < 2 and comparison.missing:
        return f"Only one {noun} left files, so there is nothing to compare"
    if count < 2:
        return f"There is only one {noun}, so there is nothing to compare"
    peaks = [rank.peak_requested_bytes for rank in comparison.ranks]
    if not peaks:
        return (
            f"The flight records of {count} ranks agree on every collective that they all contain"
        )
    low, high = format_size(min(peaks)), format_size(max(peaks))
    spread = f"peaks from {low} to {high}"
    if low == high:
        spread = f"{'both' if len(peaks) == 2 else 'all'} peak at {high}"
    return f"No difference worth acting on: {count} {noun}s, {spread}"


def _one_flight(rank: int, flight: FlightRecord) -> str:
    """What a flight record tells by itself: the call that did not end, else the last one."""
    pending = [call for call in flight.collectives if call.state != "completed"]
    if not flight.collectives:
        return f"Rank {rank} has called no collective."
    last = pending[0] if pending else flight.collectives[-1]
    where = f" at {last.user_frame.file}:{last.user_frame.line}" if last.user_frame else ""
    group = f" of group {visible(last.group)}" + (
        f" ({visible(last.description)})" if last.description else ""
    )
    call_words = f"{visible(last.name)}, number {last.seq}{group}{visible(where)}"
    calls = counted(len(flight.collectives), "call")
    if pending:
        return (
            f"Rank {rank} waits in {call_words}: {last.state}, not completed. Pass the other "
            "ranks' records to see why."
        )
    return f"Rank {rank}: all {calls} in the record completed; the last one is {call_words}."


def difference_title(difference: RankDifference) -> str:
    """What differs, and at which line where that tells something."""
    title = visible(difference.title[:1].upper() + difference.title[1:])
    return title if difference.cause == "desync" else f"{title}{at_place(difference.place)}"


def shared_title(trouble: Finding) -> str:
    """What ranks have alike, and at which line."""
    return f"{visible(trouble.title)}{at_place(trouble.place)}"


def _difference_parts(comparison: Comparison) -> Iterator[Part]:
    """Yields what differs; the headline has said already what the first is."""
    differences, failed = comparison.differences, comparison.failures.failed
    for index, difference in enumerate(differences[:_MOST_DIFFERENCES]):
        if index:
            yield Blank()
            yield Heading(f"{visible(difference_title(difference))}.", level=2)
        yield from _evidence(how_sure(difference.verdict), difference.evidence, difference.fix)
    for trouble in comparison.shared[: _MOST_DIFFERENCES if differences else 1]:
        if differences or failed:
            yield Blank()
            yield Heading(f"{shared_title(trouble)}.", level=2)
        yield from _evidence(how_sure_of_shared(trouble), trouble.evidence, trouble.fix)
    if len(differences) > _MOST_DIFFERENCES:
        more = and_more(len(differences) - _MOST_DIFFERENCES, "difference", "--json")
        yield Sentences((more,), is_aside=True)


def how_sure(verdict: Verdict) -> str:
    """How sure a difference is, in words."""
    certainty = str(verdict) if verdict is Verdict.PROVEN else f"{verdict}, not proven"
    return f"certainty: {certainty}"


def how_sure_of_shared(trouble: Finding) -> str:
    """How sure what ranks have alike is, in words."""
    return f"{how_sure(trouble.verdict)}; on most ranks"


def _evidence(verdict: str, evidence: Sequence[str], fix: str | None) -> Iterator[Part]:
    yield Items(tuple(map(visible, (verdict, *evidence))))
    if fix is not None:
        yield Sentences((visible(fix),), "  Fix: ", style=BOLD)


def failed_words(rank: FailedRank, when: str = "") -> str:
    """What happened to a rank."""
    if rank.failure is not None:
        size = format_size(rank.failure.requested_bytes)
        return (
            f"ran out of memory {when}, requesting {size}"
            if when
            else f"ran out of memory, requesting {size}"
        )
    message = "no reason recorded" if rank.error is None else _error_words(rank.error.message)
    if rank.follows:
        return f"followed: {message}"
    return f"failed {when}: {message}" if when else f"failed: {message}"


def _error_words(message: str) -> str:
    """An error in one line: of a long one its begin, and the place where it was raised."""
    text, _, place = message.rpartition(", at ")
    if len(message) <= _LONGEST_ERROR or not text:
        return visible(message[:_LONGEST_ERROR])
    return visible(f"{text[: max(0, _LONGEST_ERROR - len(place))]}…, at {place[:_LONGEST_ERROR]}")


def _failure_parts(comparison: Comparison) -> Iterator[Part]:
    failed = comparison.failures.failed
    if not failed:
        return
    clock = f" ({comparison.failures.clock})" if comparison.failures.clock else ""
    rows = [_failure_words(rank, is_first=rank is failed[0]) for rank in failed[:_MOST_ROWS]]
    yield Blank()
    yield Sentences((f"Failures, in order{clock}",))
    yield Items(tuple(rows), hang=4)
    if len(failed) > _MOST_ROWS:
        more = and_more(len(failed) - _MOST_ROWS, "failure", "--json")
        yield Sentences((more,), is_aside=True)


def _failure_words(rank: FailedRank, *, is_first: bool) -> str:
    after = "later" if rank.after_s is None else f"{rank.after_s:.1f} s later"
    happened = failed_words(replace(rank, follows=False) if is_first else rank)
    words = f"rank {rank.rank}, {'first' if is_first else after}: {happened}{at_place(rank.place)}"
    if rank.waiting_in:
        words += f"; its last collective: {visible(rank.waiting_in)}"
    return words


def _table_parts(comparison: Comparison) -> Iterator[Part]:
    """Yields the ranks; of many, the ones that stand out and what is usual."""
    ranks = comparison.ranks
    if not ranks:
        return
    noun = "device" if comparison.by_device else "rank"
    columns = (
        Column(noun, width=8, narrow_width=max(4, len(noun))),
        Column("peak requested"),
        Column("peak reserved", width=14, narrow_width=13),
        Column("GPU", width=4),
        Column("steps", width=6),
        Column("", is_right=False),
    )
    rows = tuple(_rank_row(rank, remark) for rank, remark in _listed_ranks(comparison))
    unlisted = len(ranks) - len(rows)
    left_out = and_more(unlisted, noun, "--json") if unlisted else ""
    yield Blank()
    yield Table(columns, rows, LastColumn.AS_IT_IS, margin="", header_style=BOLD, left_out=left_out)


def _rank_row(rank: RankSummary, remark: str) -> tuple[str, ...]:
    return (
        str(rank.rank),
        format_size(rank.peak_requested_bytes),
        format_size(rank.peak_reserved_bytes),
        str(rank.device) if rank.device >= 0 else "-",
        f"{len(rank.step_peaks):,}",
        remark,
    )


def _listed_ranks(comparison: Comparison) -> list[tuple[RankSummary, str]]:
    """The ranks of the table, and what to say of each."""
    ranks, odd = comparison.ranks, odd_ranks(comparison)
    if len(ranks) <= _MOST_ROWS:
        return [(rank, "differs" if rank.rank in odd else "") for rank in ranks]
    by_peak = sorted(ranks, key=lambda rank: -rank.peak_requested_bytes)
    highest, median, lowest = by_peak[0], by_peak[len(by_peak) // 2], by_peak[-1]
    remarks = {highest.rank: "highest", median.rank: "median", lowest.rank: "lowest"}
    differing = [rank for rank in by_peak if rank.rank in odd][: _MOST_ROWS - 3]
    listed = {rank.rank: rank for rank in (*differing, highest, median, lowest)}
    return [
        (rank, "differs" if rank.rank in odd else remarks.get(rank.rank, ""))
        for rank in sorted(listed.values(), key=lambda rank: -rank.peak_requested_bytes)
    ]


def odd_ranks(comparison: Comparison) -> set[int]:
    """The ranks that differ."""
    return {rank for difference in comparison.differences for rank in difference.ranks}


def _strip_parts(comparison: Comparison) -> Iterator[Part]:
    """Yields each rank's peak by step, as high as it is; of many ranks the highest and the odd."""
    ranks = [rank for rank in comparison.ranks if len(rank.step_peaks) > 1]
    if len(ranks) < 2:
        return
    listed = telling_ranks(comparison, ranks, _MOST_STRIPS)
    highest = max(max(rank.step_peaks) for rank in listed)
    steps = max(len(rank.step_peaks) for rank in listed)
    title = f"Peak of each step (full height: {format_size(highest)})"
    if steps > _WIDEST_STRIP:
        title += f"; each column is the highest of {-(-steps // _WIDEST_STRIP)} steps"
    rows = tuple((str(rank.rank), tuple(rank.step_peaks)) for rank in listed)
    yield Blank()
    yield Sentences((title,))
    yield Drawing(rows, highest, _WIDEST_STRIP)


def telling_ranks(
    comparison: Comparison, ranks: Sequence[RankSummary], most: int
) -> list[RankSummary]:
    """At most so many of the ranks, in order: those that differ and those that hold most."""
    odd = odd_ranks(comparison)
    by_telling = sorted(ranks, key=lambda rank: (rank.rank not in odd, -rank.peak_requested_bytes))
    return sorted(by_telling[:most], key=lambda rank: rank.rank)


def _communication_parts(comparison: Comparison) -> Iterator[Part]:
    """Yields what communication takes, where it was measured."""
    ledgers = [dict(rank.ledger) for rank in comparison.ranks if rank.ledger]
    sizes = [ledger["nccl"] for ledger in ledgers if "nccl" in ledger]
    if not sizes:
        return
    used = sum(sum(ledger.values()) - ledger.get("free", 0) for ledger in ledgers)
    used_by_rank = max(1, used // len(ledgers))
    mean = sum(sizes) // len(sizes)
    part = f"{100 * mean / used_by_rank:.0f}% of the memory in use"
    yield Blank()
    yield Sentences((f"NCCL communicators use {format_size(mean)} per rank, {part}",))


def _next(comparison: Comparison) -> Command:
    rank = _worth_a_look(comparison)
    if rank is None:
        command = (
            "torchrun --nproc-per-node GPUS --no-python vramlens run -o runs/r1 YOUR_SCRIPT.py"
        )
        return Command("also record the memory of the ranks", (command,), is_broken=True)
    device = f" --device {rank.device}" if comparison.by_device else ""
    source = f"{quoted(rank.source)}{device}"
    if _is_about_a_leak(comparison, rank):
        why, command = (
            f"see what each step leaves behind on rank {rank.rank}",
            f"vramlens leaks {source}",
        )
    else:
        why, command = f"see what uses the memory of rank {rank.rank}", f"vramlens explain {source}"
    return Command(why, (command,), is_broken=True)


def _is_about_a_leak(comparison: Comparison, rank: RankSummary) -> bool:
    if comparison.differences:
        worst = comparison.differences[0]
        return worst.cause == "leak" and rank.rank in worst.ranks
    is_leak = bool(comparison.shared) and comparison.shared[0].id == "leak"
    return is_leak and not comparison.failures.failed


def _worth_a_look(comparison: Comparison) -> RankSummary | None:
    ranks: Sequence[int] = ()
    if comparison.differences:
        ranks = comparison.differences[0].ranks
    elif comparison.failures.failed:
        ranks = (comparison.failures.failed[0].rank,)
    candidates = [rank for rank in comparison.ranks if rank.rank in ranks]
    return max(
        candidates or comparison.ranks, key=lambda rank: rank.peak_requested_bytes, default=None
    )
