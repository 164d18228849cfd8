"""Notes of a comparison: what was ended from outside, which experts are hot, and what keeps
ranks from being compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from math import prod

from vramlens.ranks.peers.rank_cohorts import RankCohorts
from vramlens.ranks.peers.usual import lower_median
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_failures import FailureOrder
from vramlens.ranks.rank_summary import RankSummary
from vramlens.ranks.rank_words import DEFAULT_SETTINGS, named
from vramlens.trace.flight import FlightRecord
from vramlens.units import GIB, agreeing, format_size

_FEWEST_TOLD = 3
"""Of fewer ranks that say something none is usual."""
_SLOW = 1.15
"""Times the usual step: less is what steps differ by anyway."""
_SEVERAL_STEPS = 1.8
"""Times the usual step: two or more may be taken for one."""
_FAR_BELOW = 1.1
"""Times what a rank needed when it failed: others reserved that, and lived."""
_CUT = "the file ends early"
"""Of what a recording does not hold, the words of ``read`` for a truncated one."""
_MOST_COHORTS = 6
_FEWEST_RANKS = 2
_APART = 1.02
"""Times the peak of ranks that do other work: as for a rank that differs from its peers."""
_HOT = 1.5
"""Times what the usual rank receives: less is how tokens fall."""
_EXCHANGES = ("all_to_all", "alltoall")


def note_of_victims(
    failures: FailureOrder, ranks: Sequence[RankSummary], missing: Sequence[int]
) -> list[str]:
    """One sentence on who was ended by SIGTERM, and after whom; none where nobody was."""
    victims = failures.victims
    if not victims:
        return []
    verb, noun = ("was", "a victim") if len(victims) == 1 else ("were", "victims")
    ended = f"{named(victims)} {verb} ended by SIGTERM"
    if failures.failed:
        first = failures.failed[0]
        if first.follows:
            return [f"{ended} when rank {first.rank} had ended, which did not fail by itself"]
        return [f"{ended} and did not fail: {noun} of rank {first.rank}"]
    survivors = [summary.rank for summary in ranks if summary.rank not in victims]
    if survivors:
        return [
            f"{ended}; {named(survivors)} ended without it, so the first failure is in their output"
        ]
    if missing:
        return [
            f"{ended}; the first failure is likely in the output of {named(missing)}, whose "
            "files are missing here"
        ]
    return [
        f"{ended}, which is every rank here: the job was stopped from outside, or a rank "
        "without a recording failed"
    ]


def note_of_limits(failures: FailureOrder, ranks: Sequence[RankSummary]) -> list[str]:
    """One sentence on the first rank that ran out of memory, where another one reserved more on an
    equal GPU and lived.
    """
    first = next(iter(failures.failed), None)
    failed = next((rank for rank in ranks if first is not None and rank.rank == first.rank), None)
    if failed is None or failed.failure is None or not failed.died or failed.device_name is None:
        return []
    needed_bytes = failed.peak_reserved_bytes + failed.failure.requested_bytes
    card = (failed.device_name, failed.total_bytes)
    alike = [rank for rank in ranks if (rank.device_name, rank.total_bytes) == card]
    most = max(alike, key=lambda rank: rank.peak_reserved_bytes)
    if most.died or most.peak_reserved_bytes < _FAR_BELOW * needed_bytes:
        return []
    return [
        f"rank {failed.rank} ran out of memory with {format_size(failed.peak_reserved_bytes)}"
        f" reserved, and rank {most.rank} reserved {format_size(most.peak_reserved_bytes)}: a"
        " limit of its own (set_per_process_memory_fraction) or another process on its GPU left it"
        " less; vramlens explain of its recording says which"
    ]


def notes_of_recordings(ranks: Sequence[RankSummary]) -> list[str]:
    """The limits that the recordings set to a comparison, one sentence each."""
    notes = _note_of_steps([summary for summary in ranks if summary.device >= 0])
    empty = [summary.rank for summary in ranks if summary.device < 0]
    if empty:
        notes.append(f"the recording of {named(empty)} contains no GPU memory")
    notes += [f"{words}: its numbers are lower bounds" for words in ends_early(ranks)]
    return notes


def ends_early(ranks: Sequence[RankSummary]) -> list[str]:
    """One phrase on the recordings that were cut off; none where none was."""
    cut = [summary.rank for summary in ranks if any(_CUT in gap for gap in summary.missing)]
    return [f"the recording of {named(cut)} ends early"] if cut else []


def note_of_programs(cohorts: Sequence[Sequence[int]]) -> list[str]:
    """One sentence on ranks that run other code than each other."""
    return [
        f"the ranks do {len(cohorts)} kinds of work ({_cohort_names(cohorts)}), told by the code"
        " that they run: each rank is compared with those that do the same"
    ]


def note_of_kinds_of_work(cohorts: RankCohorts, ranks: Mapping[int, RankSummary]) -> list[str]:
    """One sentence on ranks that do other work than each other, where some hold more by it."""
    members = [[rank for rank in cohort if rank in ranks] for cohort in cohorts.members]
    peaks = [
        lower_median(ranks[rank].peak_requested_bytes for rank in cohort)
        for cohort in members
        if cohort
    ]
    if len(peaks) < 2 or max(peaks) < _APART * max(1, min(peaks)):
        return []
    return [
        f"the ranks do {len(members)} kinds of work, told by {cohorts.source}"
        f" ({_cohort_names(members)}): one kind may hold more than another"
    ]


def notes_of_replicas(cohorts: RankCohorts) -> Iterator[str]:
    """Yields one sentence on replicas that serve other requests than each other, and on each place
    in process groups that has work of its own.
    """
    if cohorts.kinds:
        yield (
            f"the ranks serve {len(cohorts.kinds)} kinds of requests"
            f" ({_cohort_names(cohorts.kinds)}), so other lines hold most of their memory: each"
            " rank is compared with those of its kind"
        )
    for place in cohorts.places:
        of_group = f"each the {place.place} rank of its" if place.place else "the ranks of"
        yield (
            f"{named(place.members)}, {of_group} group {place.group}, do work that no other rank"
            f" does: {format_size(place.bytes)}, most of it at {place.line}; they are compared"
            " with each other"
        )


def _cohort_names(cohorts: Sequence[Sequence[int]]) -> str:
    """The first cohorts by their ranks: ``ranks 0-3; ranks 4 and 6``."""
    names = [named(members) for members in cohorts[:_MOST_COHORTS]]
    return "; ".join([*names, "…"] if len(cohorts) > _MOST_COHORTS else names)


def note_of_slow_ranks(ranks: Sequence[RankSummary], differing: Collection[int]) -> list[str]:
    """One sentence on ranks whose steps take longer than the usual, and whether they hold more."""
    timed = [rank for rank in ranks if rank.step_us]
    times_us = {rank.rank: rank.step_us or 0 for rank in timed}
    if len(times_us) < _FEWEST_TOLD:
        return []
    usual_us = lower_median(times_us.values())
    usual_run_us = lower_median(map(_run_us, timed))
    slow = [
        rank.rank
        for rank in timed
        if (rank.step_us or 0) > _SLOW * usual_us
        and not _is_divided_otherwise(rank, usual_us, usual_run_us)
    ]
    # In a job that waits for itself in each step all are as slow as the slowest.
    if not slow or len(slow) * 2 >= len(times_us):
        return []
    worst = max(slow, key=lambda rank: times_us[rank])
    verb = agreeing(len(slow), "takes", "take")
    memory = _memory_of_slow_ranks(set(slow), set(differing))
    return [
        f"{named(slow)} {verb} longer for a step: {times_us[worst] / 1000:,.1f} ms on rank {worst},"
        f" usually {usual_us / 1000:,.1f} ms; {memory}"
    ]


def note_of_pinned_memory(ranks: Sequence[RankSummary]) -> list[str]:
    """One sentence on ranks that keep more page-locked memory of their host than the usual."""
    pinned = {rank.rank: rank.pinned_bytes for rank in ranks if rank.pinned_bytes is not None}
    if len(pinned) < _FEWEST_TOLD:
        return []
    usual_bytes = lower_median(pinned.values())
    least_bytes = usual_bytes + max(GIB, usual_bytes // 2)
    most = [rank for rank, size in pinned.items() if size >= least_bytes]
    if not most or 2 * len(most) >= len(pinned):
        return []
    verb = agreeing(len(most), "keeps", "keep")
    worst = max(most, key=pinned.__getitem__)
    return [
        f"{named(most)} {verb} more page-locked memory of the host: {format_size(pinned[worst])} on"
        f" rank {worst}, usually {format_size(usual_bytes)}; this is host memory: data loaders with"
        " pin_memory=True and copies to the CPU use it"
    ]


def note_of_other_jobs(ranks: Sequence[RankSummary]) -> list[str]:
    """One sentence where other processes hold much on the GPUs of all ranks."""
    shared = [dict(rank.ledger).get("other_processes", 0) for rank in ranks if rank.ledger]
    if len(shared) < len(ranks) or min(shared, default=0) < GIB:
        return []
    sizes = dict.fromkeys(map(format_size, (min(shared), max(shared))))
    return [
        "the GPUs of all ranks are shared with other processes, which hold"
        f" {' to '.join(sizes)} there"
    ]


def note_of_settings(
    ranks: Sequence[RankSummary], differences: Sequence[RankDifference]
) -> list[str]:
    """One sentence on ranks whose allocator settings are not those of most; none where that is told
    as a difference.
    """
    known = [rank for rank in ranks if rank.alloc_conf is not None]
    if any(difference.cause == "allocator_settings" for difference in differences):
        return []
    counts = Counter(rank.alloc_conf for rank in known)
    (usual, count), *others = counts.most_common() or [(None, 0)]
    if 2 * count <= len(known):
        return []
    return [
        _settings_text([rank.rank for rank in known if rank.alloc_conf == conf], conf, usual)
        for conf, _ in others
    ]


def _settings_text(ranks: Sequence[int], conf: str | None, usual: str | None) -> str:
    verb = agreeing(len(ranks), "has", "have")
    return (
        f"{named(ranks)} {verb} other allocator settings: {conf or DEFAULT_SETTINGS};"
        f" the others: {usual or DEFAULT_SETTINGS}"
    )


def _is_divided_otherwise(rank: RankSummary, usual_us: int, usual_run_us: int) -> bool:
    """True if a rank has steps of several times the length in the same time: where steps are
    recognized by what repeats, something that it does every other step takes them for one.
    """
    is_longer = (rank.step_us or 0) >= _SEVERAL_STEPS * usual_us
    return is_longer and _run_us(rank) <= _SLOW * usual_run_us


def _run_us(rank: RankSummary) -> int:
    """The time of all of a rank's steps."""
    return (rank.step_us or 0) * len(rank.step_peaks)


def _memory_of_slow_ranks(slow: Set[int], differing: Set[int]) -> str:
    they, their = ("it holds", "its") if len(slow) == 1 else ("they hold", "their")
    if slow <= differing:
        return f"{they} more memory, too"
    if slow & differing:
        return "some of them hold more memory, too"
    return f"{they} no more memory than {their} peers: memory does not explain it"


def _note_of_steps(ranks: Sequence[RankSummary]) -> list[str]:
    counts = {summary.rank: len(summary.step_peaks) for summary in ranks}
    if len(set(counts.values())) < 2:
        return []
    if len(counts) == _FEWEST_RANKS:
        steps = ", ".join(f"rank {rank} recorded {count:,} steps" for rank, count in counts.items())
        return [f"{steps}: only those that both have are compared"]
    usual = lower_median(counts.values())
    odd = [rank for rank, count in counts.items() if count != usual]
    return [
        f"{named(odd)} recorded a different number of steps than most ranks, {usual:,}"
        f" ({min(counts.values()):,} to {max(counts.values()):,}):"
        " only the steps that all ranks have are compared"
    ]


def note_of_hot_experts(flights: Mapping[int, FlightRecord]) -> list[str]:
    """One sentence a process group in which a rank receives far more than the usual one."""
    received: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for rank, flight in flights.items():
        for call in flight.collectives:
            if any(name in call.name for name in _EXCHANGES):
                received[call.group][rank] += sum(map(prod, call.output_sizes))
    return [
        note
        for group, elements_by_rank in sorted(received.items())
        for note in _note(group, elements_by_rank)
    ]


def _note(group: str, elements_by_rank: Mapping[int, int]) -> list[str]:
    if len(elements_by_rank) < _FEWEST_RANKS:
        return []
    usual = lower_median(elements_by_rank.values())
    hottest = max(elements_by_rank, key=lambda rank: elements_by_rank[rank])
    most_elements = elements_by_rank[hottest]
    if not usual or most_elements < _HOT * usual:
        return []
    return [
        f"rank {hottest} receives {most_elements / usual:.1f} times what the usual rank does in"
        f" all_to_all of group {group} ({most_elements:,} elements, usually {usual:,}): its"
        " experts are hot"
    ]
