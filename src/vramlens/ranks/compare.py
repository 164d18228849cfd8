"""The comparison of ranks: who differs from its peers, by how many bytes, why, and what to do.

Peers are the ranks that do the same work; "usual" is their median, so that a few odd ranks do not
move it. The answer is as long for four ranks as for 16,000.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from vramlens.analyses.finding import Finding, Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks.causes import FIXES, STAY, WORDS, Position, fix_of
from vramlens.ranks.cohorts import ALL_RANKS, SAME_PARAMETERS, Cohorts, cohorts_of
from vramlens.ranks.collectives import CollectiveProblem, all_groups, collective_problems
from vramlens.ranks.common_factor import with_common_factors
from vramlens.ranks.difference import LEAST_BYTES, STAGE_SHARE, Difference
from vramlens.ranks.failures import FailureOrder, failure_order
from vramlens.ranks.hints import Hint
from vramlens.ranks.one_rank import OneRank
from vramlens.ranks.shared import shared_leaks
from vramlens.ranks.strangers import strangers_of, told
from vramlens.ranks.summary import RankSummary, Stray
from vramlens.ranks.usual import Usual, lower_median
from vramlens.trace.flight import FlightRecord
from vramlens.trace.rank_error import RankError
from vramlens.units import format_size

_CUT = "the file ends early"
"""Of what a recording does not hold, the words of ``read`` for a truncated one."""
_BY_SIZE = ("uneven_batch", "pipeline_stage", "uneven_shard", "embedding_shard", "unknown")
"""Causes that show on many lines at once; of these a rank has the one with most bytes."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """The answer about some ranks.

    Attributes:
        ranks: their summaries, by number.
        missing: numbers of the ranks of which there is nothing.
        cohorts: who was compared with whom.
        differences: worst first; none where nothing is worth acting on.
        shared: leaks that more than half of the ranks have alike, the largest first.
        collectives: the first collective of each group that went wrong.
        failures: who failed, in order.
        flights: the flight records, by rank.
        by_device: whether these are devices of one process.
        notes: what could not be read or compared, one sentence each.
        strangers: ranks whose recordings look like another program's, and were not compared.
    """

    ranks: tuple[RankSummary, ...]
    missing: tuple[int, ...]
    cohorts: Cohorts
    differences: tuple[Difference, ...]
    shared: tuple[Finding, ...]
    collectives: tuple[CollectiveProblem, ...]
    failures: FailureOrder
    flights: Mapping[int, FlightRecord]
    by_device: bool
    notes: tuple[str, ...]
    strangers: frozenset[int] = frozenset()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The differences as findings, then what all share."""
        differences = tuple(
            Finding(one.cause, one.verdict, one.title, one.bytes, one.place, one.evidence, one.fix)
            for one in self.differences
        )
        return differences + self.shared


def compare(
    ranks: Iterable[RankSummary],
    flights: Mapping[int, FlightRecord] | None = None,
    *,
    errors: Mapping[int, RankError] | None = None,
    missing: Sequence[int] = (),
    by_device: bool = False,
    cohorts: Cohorts | None = None,
    notes: Sequence[str] = (),
) -> Comparison:
    """Compares ranks.

    Args:
        ranks: their summaries.
        flights: flight records, by rank.
        errors: error files, by rank.
        missing: ranks of which nothing is there.
        by_device: whether these are devices of one process.
        cohorts: who does the same work, where that is known better.
        notes: to be told with the answer.
    """
    flights = flights or {}
    ordered = tuple(sorted(ranks, key=lambda one: one.rank))
    groups = all_groups(flights)
    found_cohorts = cohorts or cohorts_of(ordered, groups)
    strangers = (
        frozenset[int]() if cohorts is not None or flights or by_device else strangers_of(ordered)
    )
    problems = collective_problems(flights)
    gathers, sends = _calls(ordered, flights)
    by_rank = {one.rank: one for one in ordered}
    world = max([len(ordered) + len(missing), *(one.world_size or 0 for one in ordered)])
    differences: list[Difference] = _desync(problems)
    strays = [stray for one in ordered for stray in one.strays]
    for members in found_cohorts.members:
        peers = [by_rank[rank] for rank in members if rank not in strangers]
        whole = Usual(peers) if peers else Usual([by_rank[rank] for rank in members])
        for own in peers if len(peers) > 1 else ():
            # Of two ranks, the other one is what is usual.
            usual = whole if len(peers) > 2 else Usual([one for one in peers if one is not own])
            position = Position(
                first=own.rank == ordered[0].rank,
                last=own.rank == ordered[-1].rank,
                world=world,
                sends=sends,
                unlike=found_cohorts.source in (ALL_RANKS, SAME_PARAMETERS),
                gathers=gathers.get(own.rank, frozenset()),
            )
            differences += OneRank(own, usual, position, strays).differences()
    differences += _between_cohorts(found_cohorts, by_rank) if not strangers else []
    for one in ordered:
        differences += [_stray(one, stray) for stray in one.strays]
    failures = failure_order(ordered, flights, errors)
    return Comparison(
        ranks=ordered,
        missing=tuple(missing),
        cohorts=found_cohorts,
        differences=with_common_factors(_merged(differences), ordered),
        shared=shared_leaks(ordered),
        collectives=problems,
        failures=failures,
        flights=flights,
        by_device=by_device,
        notes=(
            *told(strangers, len(ordered)),
            *_ended(failures, ordered, missing),
            *notes,
            *_uneven_recordings(ordered),
        ),
        strangers=strangers,
    )


def _ended(
    failures: FailureOrder, ranks: Sequence[RankSummary], missing: Sequence[int]
) -> list[str]:
    """Who was ended by SIGTERM, and after whom, in one sentence."""
    if not failures.victims:
        return []
    were = "was" if len(failures.victims) == 1 else "were"
    said = f"{_named(failures.victims)} {were} ended by SIGTERM"
    if failures.failed:
        victims = "a victim" if were == "was" else "victims"
        return [f"{said} and did not fail: {victims} of rank {failures.failed[0].rank}"]
    alone = [one.rank for one in ranks if one.rank not in failures.victims]
    if alone:
        return [f"{said}; {_named(alone)} ended without it: what came first is in the output there"]
    if missing:
        return [
            f"{said}; what came first is likely in the output of {_named(missing)}, of which nothing is here"
        ]
    return [
        f"{said}, all that are here: whoever ran the job ended it, or a rank that left no recording failed"
    ]


def _uneven_recordings(ranks: Sequence[RankSummary]) -> list[str]:
    """What keeps the recordings from being compared in full, one sentence each."""
    counts = {one.rank: len(one.step_peaks) for one in ranks if one.device >= 0}
    notes = []
    if counts and min(counts.values()) != max(counts.values()):
        usual = lower_median(counts.values())
        odd = [rank for rank, count in counts.items() if count != usual]
        notes.append(
            f"{_named(odd)} recorded other numbers of steps than the usual {usual:,} ({min(counts.values()):,} to"
            f" {max(counts.values()):,}): steps are compared as far as all go"
        )
    empty = [one.rank for one in ranks if one.device < 0]
    if empty:
        notes.append(f"the recording of {_named(empty)} holds no memory of any GPU")
    cut = [one.rank for one in ranks if any(_CUT in each for each in one.missing)]
    if cut:
        notes.append(f"the recording of {_named(cut)} ends early: its figures are lower bounds")
    return notes


def _calls(
    ranks: Sequence[RankSummary], flights: Mapping[int, FlightRecord]
) -> tuple[dict[int, frozenset[tuple[str, str]]], bool]:
    """By rank the functions that call a gather; and whether any rank talks point to point."""
    gathers = {}
    for rank, flight in flights.items():
        frames = [
            one.user_frame
            for one in flight.collectives
            if one.name in ("gather", "all_gather", "reduce")
        ]
        gathers[rank] = frozenset(
            (frame.file, frame.function) for frame in frames if frame is not None
        )
    sends = any(one.is_p2p for flight in flights.values() for one in flight.collectives)
    return gathers, sends or any(
        line.hints & Hint.POINT_TO_POINT for one in ranks for line in one.lines
    )


def _between_cohorts(cohorts: Cohorts, by_rank: Mapping[int, RankSummary]) -> list[Difference]:
    """Stages of a pipeline, or coordinates of experts and tensors, that hold far more than the
    usual one.
    """
    if len(cohorts.members) < 2:
        return []
    middle = {
        members: sorted(
            (by_rank[rank] for rank in members), key=lambda one: one.peak_requested_bytes
        )[(len(members) - 1) // 2]
        for members in cohorts.members
    }
    usual = Usual(list(middle.values()))
    found = []
    for members, own in middle.items():
        more = own.peak_requested_bytes - usual.peak_bytes
        if more < max(STAGE_SHARE * usual.peak_bytes, LEAST_BYTES):
            continue
        largest = max(
            own.lines, key=lambda line: line.peak_bytes - usual.line_bytes(line), default=None
        )
        hot = (
            largest is not None
            and bool(largest.hints & Hint.EXPERTS)
            and largest.category not in STAY
        )
        cause = "moe_hot_rank" if hot else "pipeline_stage" if cohorts.staged else "unknown"
        found.append(
            Difference(
                ranks=members,
                cause=cause,
                verdict=Verdict.POSSIBLE if cause == "unknown" else Verdict.LIKELY,
                bytes=more,
                place=None if largest is None else largest.place,
                title=f"{WORDS[cause]}: {format_size(more)} more than the usual "
                + ("stage" if cohorts.staged else "ranks of other coordinates"),
                evidence=(
                    f"peak {format_size(own.peak_requested_bytes)}, usual {format_size(usual.peak_bytes)}",
                ),
                fix=fix_of(cause, None, more),
            )
        )
    return found


def _stray(one: RankSummary, stray: Stray) -> Difference:
    cause = "map_location" if stray.hints & Hint.LOAD else "stray_context"
    bytes_ = stray.process_bytes or stray.reserved_bytes
    held = format_size(stray.reserved_bytes)
    evidence = [
        f"rank {one.rank}, whose GPU is {one.device}, also holds {held} on GPU {stray.device}"
    ]
    if stray.process_bytes is not None:
        rest = stray.process_bytes - stray.reserved_bytes
        evidence.append(
            f"{format_size(max(0, rest))} of context and other memory there, as the driver counts it"
        )
    if stray.place is None:
        evidence.append("allocated before recording began, so the line is not recorded")
    if stray.hints & Hint.PIN_MEMORY:
        evidence.append("a thread that pins memory made it: such threads begin on GPU 0")
    return Difference(
        ranks=(one.rank,),
        cause=cause,
        verdict=Verdict.PROVEN,
        bytes=bytes_,
        place=stray.place,
        title=f"{WORDS[cause]}: {format_size(bytes_)} on GPU {stray.device}",
        evidence=tuple(evidence),
        fix=f"{FIXES[cause]} ({format_size(bytes_)} on GPU {stray.device})",
    )


def _desync(problems: Sequence[CollectiveProblem]) -> list[Difference]:
    """What the flight records say, one difference a group."""
    found = []
    by_group = defaultdict(list)
    for row in problems:
        by_group[row.group].append(row)
    for group, rows in by_group.items():
        odd = [row for row in rows if row.suspected]
        blamed = odd or rows
        place = next((row.place for row in blamed if row.place is not None), None)
        seq = rows[0].seq
        calls: dict[str, list[int]] = {}
        for row in rows:
            calls.setdefault(_call(row), []).append(row.rank)
        said = "; ".join(f"{_named(numbers)}: {call}" for call, numbers in list(calls.items())[:4])
        evidence = [
            f"group {group}, collective number {seq}: {said}",
            *(row.detail for row in odd[:2] if row.detail),
        ]
        if not odd:
            evidence.append("these ranks cannot show which of them is at fault")
        if all(row.problem == "no_record" for row in odd) and odd:
            evidence.append(
                "a rank that failed or left out the call is the one that writes no record"
            )
        what = {
            "no_record": "left no flight record, and the others wait",
            "missing": "did not call the collective that the others wait in",
            "waiting": "did not call the collective that the others wait in",
            "not_completed": "all called the same collective, and it did not end",
        }.get(rows[0].problem, "called different collectives")
        found.append(
            Difference(
                ranks=tuple(sorted(row.rank for row in blamed)),
                cause="desync",
                verdict=Verdict.LIKELY if rows[0].problem == "no_record" else Verdict.PROVEN,
                bytes=0,
                place=place,
                title=f"{what}: number {seq} of group {group}",
                evidence=tuple(evidence),
                fix="make every rank of the group call the same collectives in the same order"
                + (f" ({place})" if place else ""),
            )
        )
    return found


def _call(row: CollectiveProblem) -> str:
    if row.name is None:
        return "no record" if row.problem == "no_record" else "no call"
    return f"{row.name} at {row.place or 'no recorded line'}"


def _named(ranks: Sequence[int]) -> str:
    """Ranks in words: "rank 3", "ranks 0-3 and 7"."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    words = [str(a) if a == b else f"{a}-{b}" for a, b in spans]
    if len(words) > 6:
        words = [*words[:5], f"{len(words) - 5} more"]
    text = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"rank{'' if len(ranks) == 1 else 's'} {text}"


def _plural(title: str) -> str:
    """What one rank does, said of several."""
    verb, _, rest = title.partition(" ")
    several = {
        "has": "have",
        "does": "do",
        "left": "left",
        "did": "did",
        "called": "called",
        "all": "all",
    }
    rest = rest.replace("its peers", "their peers").replace(
        "on this rank alone", "on these ranks alone"
    )
    colon = ":" * verb.endswith(":")
    verb = verb.removesuffix(":")
    return f"{several.get(verb, verb.removesuffix('s'))}{colon} {rest}"


def _merged(differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """One difference a cause and line, with all its ranks; the worst first."""
    by_cause: dict[tuple[str, Place | None], list[Difference]] = defaultdict(list)
    for one in differences:
        by_cause[one.cause, None if one.cause in _BY_SIZE else one.place].append(one)
    found = []
    for same in by_cause.values():
        worst = max(same, key=lambda one: one.bytes)
        ranks = tuple(sorted({rank for one in same for rank in one.ranks}))
        title = worst.title if len(ranks) == 1 else _plural(worst.title)
        found.append(replace(worst, ranks=ranks, title=f"{_named(ranks)} {title}"))
    return tuple(sorted(found, key=lambda one: (one.cause != "desync", -one.bytes)))
