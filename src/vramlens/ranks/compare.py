"""The comparison of ranks: who differs from its peers, by how many bytes, why, and what to do.

Peers are the ranks that do the same work; "usual" is their median, so that a few odd ranks do not
move it. The answer is as long for four ranks as for 16,000.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import chain
from operator import or_

from vramlens.analyses.finding import Finding, Place
from vramlens.ground.verdict import Verdict
from vramlens.ranks.asides import Asides
from vramlens.ranks.avoidable import (
    avoidable_of_lone_ranks,
    shared_avoidable_uses,
    with_avoidable_uses,
)
from vramlens.ranks.excess.card_differences import PeersByCard
from vramlens.ranks.excess.causes import BY_STEP, FIXES, STAY, WORDS, Position
from vramlens.ranks.excess.cohort_differences import CohortComparison
from vramlens.ranks.excess.own_work import without_own_work
from vramlens.ranks.excess.rank_against_peers import RankAgainstPeers
from vramlens.ranks.excess.reasons.unfrozen import notes_of_frozen
from vramlens.ranks.excess.reasons.wider_parameters import width_differences, without_widths
from vramlens.ranks.excess.reserved_differences import with_all_of_settings
from vramlens.ranks.excess.role_leaks import RoleLeaks
from vramlens.ranks.flights.collectives import all_groups, collective_problems
from vramlens.ranks.flights.desync import Desyncs
from vramlens.ranks.hints import Hint
from vramlens.ranks.notes import (
    note_of_hot_experts,
    note_of_kinds_of_work,
    note_of_limits,
    note_of_other_jobs,
    note_of_pinned_memory,
    note_of_programs,
    note_of_settings,
    note_of_slow_ranks,
    note_of_victims,
    notes_of_recordings,
    notes_of_replicas,
)
from vramlens.ranks.peers.common_factor import with_common_factors
from vramlens.ranks.peers.placed_tables import PlacedTables
from vramlens.ranks.peers.rank_cohorts import (
    ALL_RANKS,
    PARTS,
    PLACES,
    PROGRAMS,
    ROLES,
    SAME_PARAMETERS,
    WORKLOADS,
    RankCohorts,
    cohorts_of,
)
from vramlens.ranks.peers.schedules import with_one_schedule
from vramlens.ranks.peers.strangers import strangers_note, strangers_of
from vramlens.ranks.peers.strays import strays_by_device, strays_of_ranks
from vramlens.ranks.peers.usual import Usual
from vramlens.ranks.rank_comparison import Comparison
from vramlens.ranks.rank_difference import RankDifference
from vramlens.ranks.rank_failures import failure_order
from vramlens.ranks.rank_summary import RankSummary, Stray
from vramlens.ranks.rank_words import named, plural
from vramlens.ranks.rare_steps import with_rare_steps
from vramlens.ranks.shared import shared_leaks
from vramlens.trace.flight import FlightRecord
from vramlens.trace.rank_error import RankError
from vramlens.units import format_size

_BY_SIZE = (
    "uneven_batch",
    "larger_part",
    "wider_numbers",
    "workspaces",
    "not_checkpointed",
    "not_frozen",
    "pipeline_stage",
    "uneven_shard",
    "embedding_shard",
    "larger_tensors",
)
"""Causes that show on many lines at once; of these a rank has the one with most bytes. Of an unknown
cause are as many faults as there are lines that hold most of it.
"""
_OTHER_WORK = (PROGRAMS, ROLES, SAME_PARAMETERS, PLACES, WORKLOADS, PARTS)
"""Cohorts by these do other work than each other."""
_OF_THREADS = (
    "a new thread begins on GPU 0, also that of torch.distributed.checkpoint.async_save: set its"
    " device, or show each rank only its own GPU (CUDA_VISIBLE_DEVICES)"
)
"""A thread's first copy to the host makes a context there: measured with async_save, PyTorch 2.11."""
_GATHERS = ("gather", "all_gather", "reduce")


def compare(
    ranks: Iterable[RankSummary],
    flights: Mapping[int, FlightRecord] | None = None,
    *,
    errors: Mapping[int, RankError] | None = None,
    missing: Sequence[int] = (),
    by_device: bool = False,
    cohorts: RankCohorts | None = None,
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
    ordered = tuple(sorted(ranks, key=lambda summary: summary.rank))
    may_be_strangers = cohorts is None and not flights and not by_device
    strangers = strangers_of(ordered) if may_be_strangers else frozenset[int]()
    job = _Job(
        ranks={summary.rank: summary for summary in ordered},
        missing=missing,
        cohorts=cohorts or cohorts_of(ordered, all_groups(flights), sends=_sends(flights)),
        strangers=strangers,
        flights=flights,
    )
    problems = collective_problems(flights)
    failures = failure_order(ordered, flights, errors)
    is_one_job = not ordered or len(strangers) < len(ordered)
    gone = {failure.rank for failure in failures.failed if not failure.follows}
    desyncs = Desyncs(problems, gone, _ended_by("exit", ordered), _ended_by("sigterm", ordered))
    differences = [*desyncs.differences(), *job.differences()] if is_one_job else []
    differences, notes_of_work = without_own_work(differences)
    asides = Asides(failures)
    merged = with_common_factors(_merged(differences, asides), ordered)
    merged = with_rare_steps(with_avoidable_uses(merged, job.ranks), job.ranks)
    merged, notes_of_asides = asides.taken_from(merged)
    differing = {rank for difference in merged for rank in difference.ranks}
    return Comparison(
        ranks=ordered,
        missing=tuple(missing),
        cohorts=job.cohorts,
        differences=merged,
        shared=job.shared if is_one_job else (),
        collectives=problems,
        failures=failures,
        flights=flights,
        by_device=by_device,
        notes=(
            *strangers_note(strangers, len(ordered)),
            *note_of_victims(failures, ordered, missing),
            *note_of_limits(failures, ordered),
            *desyncs.notes(),
            *note_of_hot_experts(flights),
            *job.notes(),
            *notes_of_work,
            *(note_of_settings(ordered, merged) if is_one_job else ()),
            *job.notes_of_processes(differing),
            *notes_of_asides,
            *notes,
            *(notes_of_recordings(ordered) if is_one_job else ()),
        ),
        strangers=strangers,
    )


@dataclass(frozen=True, eq=False)
class _Job:
    """The ranks to compare.

    Attributes:
        ranks: their summaries by number, ascending.
        missing: numbers of the ranks of which there is nothing.
        cohorts: who does the same work.
        strangers: ranks that are not compared.
        flights: flight records, by rank.
    """

    ranks: Mapping[int, RankSummary]
    missing: Sequence[int]
    cohorts: RankCohorts
    strangers: frozenset[int]
    flights: Mapping[int, FlightRecord]

    def differences(self) -> Iterator[RankDifference]:
        """Yields what one rank does and its peers do not."""
        widths = [*width_differences(tuple(self.ranks.values()))]
        yield from widths
        for difference in without_widths([*self.within_cohorts()], widths):
            if not (self._follows_from_stray(difference) or self._is_put_here(difference)):
                yield difference
        if self.between_cohorts is not None:
            yield from without_widths([*self.between_cohorts.differences()], widths)
        else:
            yield from self.of_roles()
        for rank, strays in self._strays.items():
            yield from (_stray(self.ranks[rank], stray) for stray in strays)

    def _follows_from_stray(self, difference: RankDifference) -> bool:
        """True if ranks differ because one of them loaded to another's GPU: that one copied it to
        its own then, at a line that its peers do not have, and these have it where they loaded it.
        """
        rank = difference.ranks[0]
        if difference.cause == "map_location":
            others = chain.from_iterable(
                strays for other, strays in self._strays.items() if other != rank
            )
            return difference.place in {stray.place for stray in others}
        loaded = [stray for stray in self._strays.get(rank, ()) if stray.hints & Hint.LOAD]
        lines = [line for line in self.ranks[rank].lines if line.place == difference.place]
        stays = bool(lines) and all(line.category in STAY for line in lines)
        is_copy = difference.bytes <= sum(stray.reserved_bytes for stray in loaded)
        return difference.cause == "rank_only" and stays and is_copy

    def _is_put_here(self, difference: RankDifference) -> bool:
        """True if half of the other ranks of a host put as much on a rank's GPU at the same line: that is
        no fault of the rank whose GPU it is.
        """
        own = self.ranks[difference.ranks[0]]
        alike = [
            stray
            for stray in self._strays_by_device.get((own.host, own.device), ())
            if stray.place == difference.place and 2 * stray.reserved_bytes >= difference.bytes
        ]
        others = sum(rank.host == own.host for rank in self.ranks.values()) - 1
        is_of_line = difference.cause == "rank_only" and difference.place is not None
        return is_of_line and 2 * len(alike) >= others > 0

    @cached_property
    def _strays(self) -> dict[int, tuple[Stray, ...]]:
        return strays_of_ranks(tuple(self.ranks.values()))

    @cached_property
    def _strays_by_device(self) -> dict[tuple[str | None, int], list[Stray]]:
        return strays_by_device(self.ranks, self._strays)

    def notes(self) -> list[str]:
        """What differs between ranks by nature, one sentence each."""
        notes = [note for tables in self._tables for note in tables.notes]
        alike = [] if self._is_sending else [tables.peers for tables in self._tables]
        frozen = [note for peers in alike for note in notes_of_frozen(peers)]
        if self.cohorts.source == PROGRAMS:
            notes += [] if self.strangers else note_of_programs(self.cohorts.members)
        elif self.cohorts.source in (PLACES, WORKLOADS):
            notes += notes_of_replicas(self.cohorts)
        elif self.between_cohorts is not None:
            notes += self.between_cohorts.notes()
        if not notes and not self.strangers:
            notes += note_of_kinds_of_work(self.cohorts, self.ranks)
        return [*notes, *frozen]

    def notes_of_processes(self, differing: Collection[int]) -> Iterator[str]:
        """Yields whether all share their GPUs, who takes longer for a step, and who keeps more of
        the host's memory; of ranks that run other programs, more than those that run the same.
        """
        if self.strangers:
            return
        yield from note_of_other_jobs(tuple(self.ranks.values()))
        alike = self.cohorts.members if self.cohorts.source == PROGRAMS else [tuple(self.ranks)]
        for members in alike:
            ranks = [self.ranks[rank] for rank in members]
            yield from note_of_slow_ranks(ranks, differing)
            yield from note_of_pinned_memory(ranks)

    def within_cohorts(self) -> Iterator[RankDifference]:
        """Yields the differences of ranks from those that do the same work."""
        for tables in self._tables:
            peers = tables.peers
            if len(peers) < 2:
                continue
            usual, by_card = Usual(peers), PeersByCard(peers)
            differences = list(self._among(usual, by_card))
            odd = {rank for difference in differences for rank in difference.ranks}
            usual_of_others = usual.without(odd)
            if usual_of_others is not None:
                differences = list(self._among(usual_of_others, by_card))
            told = [
                difference
                for difference in differences
                if not (difference.cause in BY_STEP and tables.explains(difference.bytes))
            ]
            yield from with_all_of_settings(told, peers)

    @cached_property
    def _tables(self) -> list[PlacedTables]:
        """By cohort, its ranks and the tables that each of them owns; stages own layers."""
        return [
            PlacedTables(
                [self.ranks[rank] for rank in members if rank not in self.strangers],
                may_be_placed=not self._is_sending,
            )
            for members in self.cohorts.members
        ]

    def _among(self, usual: Usual, by_card: PeersByCard) -> Iterator[RankDifference]:
        """Yields the differences of peers from what is usual among them."""
        for peer in usual.ranks:
            strays = self._strays_by_device.get((peer.host, peer.device), ())
            position = self._positions[peer.rank]
            yield from by_card.differences(
                RankAgainstPeers(peer, usual.beside(peer), position, strays)
            )

    @cached_property
    def shared_leaks(self) -> tuple[Finding, ...]:
        """Leaks that most ranks have alike; without those of one of several programs."""
        leaks = shared_leaks(tuple(self.ranks.values()))
        if self.cohorts.source != PROGRAMS:
            return leaks
        return tuple(leak for leak in leaks if self._is_of_several_cohorts(leak.place))

    @property
    def shared(self) -> tuple[Finding, ...]:
        """The trouble that most ranks have alike: leaks, and what they need not hold."""
        return (*self.shared_leaks, *shared_avoidable_uses(tuple(self.ranks.values())))

    def _is_of_several_cohorts(self, place: Place | None) -> bool:
        leaking = {
            rank
            for rank, summary in self.ranks.items()
            if any(leak.place == place for leak in summary.leaks)
        }
        return not any(leaking.issubset(members) for members in self.cohorts.members)

    def of_roles(self) -> Iterator[RankDifference]:
        """Yields the leaks of cohorts that are not compared, and what lone ranks need not hold."""
        if not self.strangers:
            shared = {finding.place for finding in self.shared_leaks}
            roles = RoleLeaks(self.ranks, self.cohorts.members, self._positions, shared)
            yield from roles.differences()
            yield from avoidable_of_lone_ranks(self.ranks, self.cohorts.members)

    @cached_property
    def between_cohorts(self) -> CohortComparison | None:
        """The cohorts beside each other; None where they cannot be compared."""
        are_parts = self.cohorts.staged or self.cohorts.source not in _OTHER_WORK
        if len(self.cohorts.members) < 2 or not are_parts or self.strangers:
            return None
        return CohortComparison(with_one_schedule(self.ranks), self.cohorts, self._positions)

    @cached_property
    def _positions(self) -> dict[int, Position]:
        """The position of each rank."""
        world_sizes = [summary.world_size or 0 for summary in self.ranks.values()]
        world = max([len(self.ranks) + len(self.missing), *world_sizes])
        unlike = self.cohorts.source in (ALL_RANKS, ROLES, SAME_PARAMETERS, PLACES)
        # Peers that are known to be of one stage differ for other reasons.
        sends = unlike and self._is_pipeline()
        first, last = min(self.ranks, default=0), max(self.ranks, default=0)
        return {
            rank: Position(
                first=rank == first,
                last=rank == last,
                world=world,
                sends=sends,
                unlike=unlike,
                gathers=_gathering_functions(self.flights.get(rank)),
                steps=len(summary.step_peaks),
            )
            for rank, summary in self.ranks.items()
        }

    @property
    def _is_sending(self) -> bool:
        return any(position.sends for position in self._positions.values())

    def _is_pipeline(self) -> bool:
        """True if ranks talk point to point, or if only the last one computes a loss."""
        if _sends(self.flights):
            return True
        hints = {
            rank: reduce(or_, (line.hints for line in summary.lines), Hint.NONE)
            for rank, summary in self.ranks.items()
        }
        losing = [rank for rank, of_rank in hints.items() if of_rank & Hint.LOSS]
        is_last_alone = len(hints) > 1 and losing == [max(hints)]
        return is_last_alone or any(of_rank & Hint.POINT_TO_POINT for of_rank in hints.values())


def _ended_by(trigger: str, ranks: Iterable[RankSummary]) -> set[int]:
    """The ranks whose recordings were written for a reason."""
    return {summary.rank for summary in ranks if summary.was_ended_by(trigger)}


def _sends(flights: Mapping[int, FlightRecord]) -> bool:
    """True if ranks talk point to point."""
    calls = chain.from_iterable(flight.collectives for flight in flights.values())
    return any(call.is_p2p for call in calls)


def _gathering_functions(flight: FlightRecord | None) -> frozenset[tuple[str, str]]:
    """The functions (file and name) that call a gather."""
    calls = () if flight is None else flight.collectives
    frames = {call.user_frame for call in calls if call.name in _GATHERS}
    return frozenset((frame.file, frame.function) for frame in frames if frame is not None)


def _stray(summary: RankSummary, stray: Stray) -> RankDifference:
    """The difference of a rank that holds memory on a GPU of another."""
    cause = "map_location" if stray.hints & Hint.LOAD else "stray_context"
    excess_bytes = stray.process_bytes or stray.reserved_bytes
    size = format_size(excess_bytes)
    is_context = not stray.reserved_bytes
    on_both = f"rank {summary.rank}, whose GPU is {summary.device}, also"
    evidence = [
        f"{on_both} has a CUDA context on GPU {stray.device}, and nothing of PyTorch's"
        if is_context
        else f"{on_both} holds {format_size(stray.reserved_bytes)} on GPU {stray.device}"
    ]
    if stray.process_bytes is not None:
        context = format_size(max(0, stray.process_bytes - stray.reserved_bytes))
        evidence.append(
            f"{context} of CUDA context and other memory there, according to the driver"
        )
    if stray.place is None and not is_context:
        evidence.append("it was allocated before recording began, so the line is unknown")
    if stray.hints & Hint.PIN_MEMORY:
        evidence.append("a thread that pins memory created it: such threads start on GPU 0")
    if is_context and stray.device == 0:
        evidence.append(_OF_THREADS)
    return RankDifference(
        ranks=(summary.rank,),
        cause=cause,
        verdict=Verdict.PROVEN,
        bytes=excess_bytes,
        place=stray.place,
        title=f"{WORDS[cause]}: {size} on GPU {stray.device}",
        evidence=tuple(evidence),
        fix=f"{FIXES[cause]} ({size} on GPU {stray.device})",
    )


def _merged(differences: Sequence[RankDifference], asides: Asides) -> tuple[RankDifference, ...]:
    """One difference a cause and line, or a call of a hang, with all its ranks: the worst first, asides last."""
    by_cause: dict[tuple[str, Place | None, str], list[RankDifference]] = defaultdict(list)
    for difference in differences:
        place = None if difference.cause in _BY_SIZE else difference.place
        call = difference.title if difference.cause == "desync" else ""
        by_cause[difference.cause, place, call].append(difference)
    _join_without_place(by_cause)
    return tuple(
        sorted(
            map(_worst_of_all, by_cause.values()),
            key=lambda difference: (
                difference.cause != "desync",
                asides.is_last(difference),
                -difference.bytes,
            ),
        )
    )


def _join_without_place(
    by_cause: dict[tuple[str, Place | None, str], list[RankDifference]],
) -> None:
    """Moves differences for which no one line is to blame to those of the same first line: where two
    lines hold a half each, some bytes decide.
    """
    placed = {
        (cause, difference.evidence[:1]): (cause, place, call)
        for (cause, place, call), differences in by_cause.items()
        for difference in differences
        if place is not None and str(place) in "".join(difference.evidence[:1])
    }
    for key in [key for key in by_cause if key[1] is None and key[0] not in _BY_SIZE]:
        for difference in by_cause.pop(key):
            new_key = placed.get((key[0], difference.evidence[:1]), key)
            by_cause[new_key].append(replace(difference, place=new_key[1]))


def _worst_of_all(differences: Sequence[RankDifference]) -> RankDifference:
    """The worst of differences of one cause, about the ranks of all."""
    worst = max(differences, key=lambda difference: difference.bytes)
    ranks = sorted({rank for difference in differences for rank in difference.ranks})
    title = worst.title if len(ranks) == 1 else plural(worst.title)
    is_one_place = len({difference.place for difference in differences}) == 1
    return replace(
        worst,
        ranks=tuple(ranks),
        title=f"{named(ranks)} {title}",
        place=worst.place if is_one_place else None,
    )
