"""Failures: which rank failed first, which only followed, and which were ended from outside."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vramlens.analyses.finding import Place
from vramlens.ranks.summary import Failure, RankSummary
from vramlens.trace.flight import FlightRecord
from vramlens.trace.rank_error import RankError, tells_of_another

_NO_MESSAGE = "an exception that nobody caught, which its own output shows"


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
    failure: Failure | None
    error: RankError | None
    follows: bool
    after_s: float | None
    waiting_in: str | None
    ended_us: int | None = None

    @property
    def time_us(self) -> int | None:
        """When it failed, by its own machine's clock, in microseconds since the epoch."""
        if self.failure is not None:
            return self.failure.time_us
        return (
            self.ended_us
            if self.error is None or self.error.time_s is None
            else self.error.time_s * 1_000_000
        )

    @property
    def place(self) -> Place | None:
        """The user line that it failed at."""
        if self.failure is not None:
            return self.failure.place
        found = None if self.error is None else self.error.user_frame
        return None if found is None else Place(found.file, found.line, found.function)


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
    errors = errors or {}
    died = {one.rank: one.failure for one in ranks if one.failure is not None and one.failure.died}
    ended = {
        one.rank: one.ended[1] for one in ranks if one.ended is not None and one.ended[0] == "error"
    }
    raised = {one.rank: _raised(one) for one in ranks if one.rank in ended}
    errors = {**raised, **errors}
    failed = [
        FailedRank(
            rank=rank,
            failure=died.get(rank),
            error=errors.get(rank),
            follows=rank not in died and errors[rank].follows,
            after_s=None,
            waiting_in=None,
            ended_us=ended.get(rank),
        )
        for rank in sorted({*died, *errors})
    ]
    known = {one.rank for one in failed}
    victims = tuple(
        one.rank
        for one in ranks
        if one.ended and one.ended[0] == "sigterm" and one.rank not in known
    )
    if not failed:
        return FailureOrder((), "", victims)
    hosts = {one.rank: one.host for one in ranks}
    here = {hosts.get(one.rank) for one in failed}
    offsets = _clock_offsets({one.rank: flights[one.rank] for one in failed if one.rank in flights})
    if len(failed) < 2:
        clock, comparable = "", True
    elif len(offsets) == len(failed):
        clock, comparable = "clocks aligned by collectives that all of them completed", True
    elif len(here) == 1 and None not in here:
        clock, comparable = "one machine's clock", True
    elif here == {None} or len({host for host in hosts.values() if host is not None}) == 1:
        clock, comparable = (
            "the files' clocks, as if of one machine: not all of them say which",
            True,
        )
    else:
        clock, comparable = (
            f"clocks of {len(here)} machines that nothing aligns: the order may be another",
            False,
        )
    if len(failed) > 1 and any(
        one.failure is None and one.time_us != one.ended_us for one in failed
    ):
        clock += "; error files tell whole seconds"
    times = {
        one.rank: one.time_us - offsets.get(one.rank, 0)
        for one in failed
        if one.time_us is not None
    }
    start = min(times.values(), default=0)

    def order(one: FailedRank) -> tuple[bool, int, int]:
        # Whoever says that another is gone was not the first, whatever its clock says.
        return one.follows, times.get(one.rank, 1 << 62), one.rank

    return FailureOrder(
        tuple(
            replace(
                one,
                after_s=max(0.0, (times[one.rank] - start) / 1e6)
                if comparable and one.rank in times
                else None,
                waiting_in=_last_call(flights.get(one.rank), one.time_us),
            )
            for one in sorted(failed, key=order)
        ),
        clock,
        victims,
    )


def _raised(one: RankSummary) -> RankError:
    """What a recording says of the exception that ended its program."""
    message = one.ending or _NO_MESSAGE
    return RankError(one.source, message, None, (), tells_of_another(message))


def _clock_offsets(flights: Mapping[int, FlightRecord]) -> dict[int, int]:
    """By rank, how far its clock is ahead of the first one's, in microseconds: a collective ends
    on all at once.
    """
    ends = {
        rank: {
            (one.group, one.seq): one.completed_ns
            for one in flight.collectives
            if not one.is_p2p and one.completed_ns is not None
        }
        for rank, flight in flights.items()
    }
    if len(ends) < 2:
        return {}
    first = min(ends)
    found = {first: 0}
    for rank, own in ends.items():
        common = own.keys() & ends[first].keys()
        if rank != first and common:
            found[rank] = int(
                statistics.median(own[key] - ends[first][key] for key in common) // 1000
            )
    return found if len(found) == len(ends) else {}


def _last_call(flight: FlightRecord | None, time_us: int | None) -> str | None:
    if flight is None or time_us is None:
        return None
    before = [
        one
        for one in flight.collectives
        if one.created_ns is not None and one.created_ns // 1000 <= time_us
    ]
    if not before:
        return None
    last = before[-1]
    where = f" at {last.user_frame.file}:{last.user_frame.line}" if last.user_frame else ""
    return f"{last.name} number {last.seq}{where}, {last.state}"
