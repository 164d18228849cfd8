"""Failures: which rank failed first, which only followed, and which were ended from outside."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vramlens.analyses.finding import Place
from vramlens.ranks.rank_summary import RankFailure, RankSummary
from vramlens.trace.flight import Collective, FlightRecord
from vramlens.trace.rank_error import RankError, tells_of_another

_OF_MEMORY = re.compile(r"(?i)out of memory|ALLOC_FAILED|OutOfMemory")
"""CUDA's and NCCL's words, and cuBLAS's and cuDNN's."""
_NO_MESSAGE = "an uncaught exception (see the output of that rank)"


@dataclass(frozen=True, slots=True)
class FailedRank:
    """A rank that failed.

    Attributes:
        rank: which.
        failure: its last request for memory that failed; None where it failed of something else.
        error: its error file, or what stands for it where its recording says that an exception
            ended it; else None.
        follows: whether it only says that another rank is gone.
        after_s: seconds after the first failure of all; None where the clocks cannot be compared.
        waiting_in: the last collective that it had called by then, and where; None where unknown.
        ended_us: when its recording was written, if that was because an exception ended it.
    """

    rank: int
    failure: RankFailure | None
    error: RankError | None
    follows: bool
    after_s: float | None = None
    waiting_in: str | None = None
    ended_us: int | None = None

    @property
    def time_us(self) -> int | None:
        """The moment at which it failed, by its own machine's clock, in microseconds since the
        epoch.
        """
        if self.failure is not None:
            return self.failure.time_us
        if self.error is None or self.error.time_s is None:
            return self.ended_us
        return self.error.time_s * 1_000_000

    @property
    def is_of_memory(self) -> bool:
        """Whether it ran out of memory, also where another library than PyTorch's allocator asked for it."""
        message = "" if self.error is None else self.error.message
        return self.failure is not None or bool(_OF_MEMORY.search(message))

    @property
    def place(self) -> Place | None:
        """The user line that it failed at."""
        if self.failure is not None:
            return self.failure.place
        frame = None if self.error is None else self.error.user_frame
        return None if frame is None else frame.place


@dataclass(frozen=True, slots=True)
class FailureOrder:
    """The ranks that failed, the first one first.

    Attributes:
        failed: them.
        clock: what their order rests on, in words; empty where there are fewer than two.
        victims: ranks that SIGTERM ended: their launcher's answer to another one's failure, or
            somebody's.
    """

    failed: tuple[FailedRank, ...]
    clock: str
    victims: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Clock:
    """The clock that an order of failures rests on, in words; and whether times may be compared at
    all.
    """

    words: str
    is_comparable: bool = True


def failure_order(
    ranks: Sequence[RankSummary],
    flights: Mapping[int, FlightRecord],
    errors: Mapping[int, RankError] | None = None,
) -> FailureOrder:
    """The order in which ranks failed; failures that their program survived do not count.

    Args:
        ranks: their summaries: requests for memory that failed.
        flights: flight records: what each was in, and how far the clocks are apart.
        errors: error files, by rank.
    """
    failed = _failed_ranks(ranks, flights, errors or {})
    failed_numbers = {failed_rank.rank for failed_rank in failed}
    victims = tuple(
        summary.rank
        for summary in ranks
        if summary.was_ended_by("sigterm") and summary.rank not in failed_numbers
    )
    offsets = _clock_offsets({rank: flights[rank] for rank in failed_numbers & flights.keys()})
    clock = _clock_of(failed, ranks, are_aligned=len(offsets) == len(failed))
    times_us = {
        failed_rank.rank: failed_rank.time_us - offsets.get(failed_rank.rank, 0)
        for failed_rank in failed
        if failed_rank.time_us is not None
    }
    first_us = min(times_us.values(), default=0)

    def order(failed_rank: FailedRank) -> tuple[bool, float, int]:
        # Whoever says that another is gone was not the first, whatever its clock says.
        time_us = times_us.get(failed_rank.rank, float("inf"))
        return failed_rank.follows, time_us, failed_rank.rank

    def placed_in_time(failed_rank: FailedRank) -> FailedRank:
        waiting_in = _last_call(flights.get(failed_rank.rank), failed_rank.time_us)
        after_s = None
        if clock.is_comparable and failed_rank.rank in times_us:
            after_s = max(0.0, (times_us[failed_rank.rank] - first_us) / 1e6)
        return replace(failed_rank, after_s=after_s, waiting_in=waiting_in)

    return FailureOrder(
        failed=tuple(map(placed_in_time, sorted(failed, key=order))),
        clock=clock.words,
        victims=victims,
    )


def _failed_ranks(
    ranks: Sequence[RankSummary],
    flights: Mapping[int, FlightRecord],
    errors: Mapping[int, RankError],
) -> list[FailedRank]:
    """The ranks that ran out of memory, raised, aborted, or left an error file; by number."""
    deaths = {summary.rank: summary.failure for summary in ranks if summary.died}
    raised = {
        summary.rank: summary
        for summary in ranks
        if summary.was_ended_by("error") or summary.was_ended_by("sigabrt")
    }
    own_errors = {rank: _error_of(summary, flights.get(rank)) for rank, summary in raised.items()}
    errors = {**own_errors, **errors}
    ended_us = {
        rank: summary.ended[1] for rank, summary in raised.items() if summary.ended is not None
    }
    return [
        FailedRank(
            rank=rank,
            failure=deaths.get(rank),
            error=errors.get(rank),
            follows=rank not in deaths and errors[rank].follows,
            ended_us=ended_us.get(rank),
        )
        for rank in sorted({*deaths, *errors})
    ]


def _error_of(summary: RankSummary, flight: FlightRecord | None) -> RankError:
    """The exception that ended a program, as far as its recording tells of it."""
    message = summary.ending or _NO_MESSAGE
    return RankError(
        source=summary.source,
        message=message,
        time_s=None,
        frames=(),
        follows=tells_of_another(message) or _was_aborted_by_watchdog(summary, flight),
    )


def _was_aborted_by_watchdog(summary: RankSummary, flight: FlightRecord | None) -> bool:
    """True if a rank was aborted because a collective had timed out; without a flight record, every
    abort is taken for that.
    """
    if summary.ended is None or not summary.was_ended_by("sigabrt"):
        return False
    end_ns = summary.ended[1] * 1000
    return flight is None or any(
        call.completed_ns is None
        and call.created_ns is not None
        and call.created_ns + (call.timeout_ms or 0) * 1_000_000 <= end_ns
        for call in flight.collectives
    )


def _clock_of(
    failed: Sequence[FailedRank], ranks: Sequence[RankSummary], *, are_aligned: bool
) -> _Clock:
    if len(failed) < 2:
        return _Clock("")
    clock = _Clock("clocks aligned by collectives that all ranks completed")
    if not are_aligned:
        clock = _clock_of_hosts(failed, ranks)
    if any(_is_in_whole_seconds(failed_rank) for failed_rank in failed):
        return replace(clock, words=f"{clock.words}; error files contain whole seconds only")
    return clock


def _clock_of_hosts(failed: Sequence[FailedRank], ranks: Sequence[RankSummary]) -> _Clock:
    """The clock of ranks that no collective aligns: it depends on how many machines they ran on."""
    hosts = {summary.rank: summary.host for summary in ranks}
    failed_hosts = {hosts.get(failed_rank.rank) for failed_rank in failed}
    if len(failed_hosts) == 1 and None not in failed_hosts:
        return _Clock("all times from one machine's clock")
    if failed_hosts == {None} or len(set(hosts.values()) - {None}) == 1:
        return _Clock("times as written in the files: not all of them name their machine")
    return _Clock(
        f"clocks of {len(failed_hosts)} machines, not aligned: the order may be different",
        is_comparable=False,
    )


def _is_in_whole_seconds(failed_rank: FailedRank) -> bool:
    return failed_rank.failure is None and failed_rank.time_us != failed_rank.ended_us


def _clock_offsets(flights: Mapping[int, FlightRecord]) -> dict[int, int]:
    """By rank, how far its clock is ahead of the first one's, in microseconds: a collective ends
    on all at once. Empty where the ranks have not all completed one together.
    """
    if len(flights) < 2:
        return {}
    ends = {rank: _ends_ns(flight) for rank, flight in flights.items()}
    first_rank = min(ends)
    first_ends = ends.pop(first_rank)
    offsets = {first_rank: 0}
    for rank, rank_ends in ends.items():
        common = rank_ends.keys() & first_ends.keys()
        if not common:
            return {}
        ahead_ns = statistics.median(rank_ends[call] - first_ends[call] for call in common)
        offsets[rank] = int(ahead_ns // 1000)
    return offsets


def _ends_ns(flight: FlightRecord) -> dict[tuple[str, int], int]:
    """The moment at which each collective ended, by its group and number."""
    return {
        (call.group, call.seq): call.completed_ns
        for call in flight.collectives
        if not call.is_p2p and call.completed_ns is not None
    }


def _last_call(flight: FlightRecord | None, time_us: int | None) -> str | None:
    """The last collective that a rank had called by some time, where, and how far it came."""
    if flight is None or time_us is None:
        return None
    calls = [call for call in flight.collectives if _is_created_by(call, time_us)]
    if not calls:
        return None
    call = calls[-1]
    where = f" at {call.user_frame.file}:{call.user_frame.line}" if call.user_frame else ""
    return f"{call.name} number {call.seq}{where}, {call.state}"


def _is_created_by(call: Collective, time_us: int) -> bool:
    return call.created_ns is not None and call.created_ns // 1000 <= time_us
