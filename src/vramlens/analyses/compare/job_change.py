"""A job before and after a change: its ranks' peaks, failures and growth, and what sets ranks apart
from their peers now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from vramlens.analyses.compare.compared_run import HISTORY_SHARE
from vramlens.analyses.finding import Finding
from vramlens.units import agreeing, counted, format_size, listed

GROWTH_SHARE = 0.05
"""Bytes a step are known to so much: a smaller difference is none."""
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank of one job.

    Attributes:
        requested_bytes: its requested peak.
        growth_bytes: what a step leaves behind.
        failed: whether it ran out of memory.
    """

    requested_bytes: int
    growth_bytes: int
    failed: bool


@dataclass(frozen=True, slots=True)
class RankChange:
    """One rank before and after; None where that job has nothing of it."""

    rank: int
    before: RankState | None
    after: RankState | None

    @property
    def change_bytes(self) -> int:
        """The change of its requested peak; 0 where one side is missing."""
        if self.before is None or self.after is None:
            return 0
        return self.after.requested_bytes - self.before.requested_bytes

    @property
    def fails_now(self) -> bool:
        """True where it runs out of memory and did not before."""
        was_fine = self.before is None or not self.before.failed
        return self.after is not None and self.after.failed and was_fine

    @property
    def more_growth_bytes(self) -> int:
        """What each step leaves behind beyond what it left before; 0 where that is no more."""
        if self.before is None or self.after is None:
            return 0
        more = self.after.growth_bytes - self.before.growth_bytes
        return more if more > GROWTH_SHARE * self.after.growth_bytes else 0


@dataclass(frozen=True, slots=True)
class JobChange:
    """What changed between two runs of a job.

    Attributes:
        before, after: the folders.
        ranks: by number, every rank of either run.
        rank: the one whose lines are compared.
        came, went: what sets ranks apart from their peers, or all of them leak, in only one of the
            runs: as ``ranks`` tells it.
        lost: ranks of the run before that left no recording in the run after, although it had
            them as far as its recordings tell.
        notes: what could not be read, one sentence each.
        unjudged: why the run after may be worse than it looks, one phrase each.
    """

    before: str
    after: str
    ranks: tuple[RankChange, ...]
    rank: int
    came: tuple[Finding, ...]
    went: tuple[Finding, ...]
    lost: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()

    @property
    def sizes(self) -> tuple[int, int]:
        """How many ranks there are something of, before and after."""
        return (
            sum(change.before is not None for change in self.ranks),
            sum(change.after is not None for change in self.ranks),
        )

    @property
    def failing(self) -> list[int]:
        """The ranks that run out of memory and did not before."""
        return [change.rank for change in self.ranks if change.fails_now]

    def worse(self, allowed: Callable[[int], int]) -> Iterator[str]:
        """Yields why the run after is worse, one phrase each.

        Args:
            allowed: by how much a peak of so many bytes may rise.
        """
        if self.lost:
            yield _lost_words(self.lost)
        if self.failing:
            yield _failing_words(self.failing)
        risen = [change for change in self.ranks if _is_over(change, allowed)]
        if risen:
            highest = max(risen, key=lambda change: change.change_bytes)
            yield (
                f"the requested peak rose on {counted(len(risen), 'rank')}, most on rank "
                f"{highest.rank}: by {format_size(highest.change_bytes)}"
            )
        growing = [change for change in self.ranks if _is_growing(change, allowed)]
        if growing:
            highest = max(growing, key=lambda change: change.more_growth_bytes)
            more = format_size(highest.more_growth_bytes)
            yield f"every step leaves {more} more behind on rank {highest.rank}"


def _is_over(change: RankChange, allowed: Callable[[int], int]) -> bool:
    if change.before is None:
        return False
    return change.change_bytes > allowed(change.before.requested_bytes)


def _is_growing(change: RankChange, allowed: Callable[[int], int]) -> bool:
    if change.before is None:
        return False
    return change.more_growth_bytes > allowed(change.before.requested_bytes)


def job_headline(job: JobChange) -> str:
    """What people ask of two runs of a job, in one sentence."""
    return (
        _ended_badly(job)
        or _mended(job)
        or _grows_more(job)
        or _peak_changed(job)
        or f"No rank's peak changed by more than 1% ({_rank_counts(job)})."
    )


def _ended_badly(job: JobChange) -> str | None:
    """Which ranks left nothing or run out of memory now; None where none does."""
    troubles = []
    if job.lost:
        troubles.append(_lost_words(job.lost))
    if job.failing:
        troubles.append(_failing_words(job.failing))
    if not troubles:
        return None
    words = ", and ".join(troubles)
    return f"{words[:1].upper()}{words[1:]} ({_rank_counts(job)})."


def _mended(job: JobChange) -> str | None:
    """Which ranks ran out of memory and do not now; None where none did."""
    mended = [
        change.rank
        for change in job.ranks
        if change.before is not None
        and change.after is not None
        and change.before.failed
        and not change.after.failed
    ]
    if not mended:
        return None
    words = f"{_named(mended)} {_runs(mended)} out of memory no longer"
    return f"{words.capitalize()} ({_rank_counts(job)})."


def _grows_more(job: JobChange) -> str | None:
    """Which rank leaves most more behind with every step; None where none does."""
    growing = [change for change in job.ranks if change.more_growth_bytes]
    if not growing:
        return None
    worst = max(growing, key=lambda change: change.more_growth_bytes)
    also = f" (and {len(growing) - 1:,} more of {job.sizes[1]:,})" if len(growing) > 1 else ""
    return (
        f"Rank {worst.rank}{also} leaves {format_size(worst.more_growth_bytes)} more behind "
        f"with every step than before ({_rank_counts(job)})."
    )


def _peak_changed(job: JobChange) -> str | None:
    """Whose requested peak changed most; None where none did by more than runs of one program
    do.
    """
    changed = [change for change in job.ranks if is_telling(change)]
    if not changed:
        return None
    largest = max(changed, key=lambda change: abs(change.change_bytes))
    assert largest.before is not None
    assert largest.after is not None
    higher = "higher" if largest.change_bytes > 0 else "lower"
    before, after = job.sizes
    ranks = "" if before == after else f" ({_rank_counts(job)})"
    return (
        f"The requested peak changed on {counted(len(changed), 'rank')} of {after:,}, most on rank "
        f"{largest.rank}: {format_size(abs(largest.change_bytes))} {higher}, "
        f"{format_size(largest.before.requested_bytes)} before and "
        f"{format_size(largest.after.requested_bytes)} after{ranks}."
    )


def _rank_counts(job: JobChange) -> str:
    """How many ranks there are; another number is other work, unless ranks were lost."""
    before, after = job.sizes
    if before == after:
        return counted(after, "rank")
    numbers = f"{counted(before, 'rank')} before, {after:,} now"
    return numbers if job.lost else f"different workloads: {numbers}"


def _lost_words(ranks: Sequence[int]) -> str:
    return f"{_named(ranks)} left no recording now"


def _failing_words(ranks: Sequence[int]) -> str:
    return f"{_named(ranks)} {_runs(ranks)} out of memory now"


def _named(ranks: Sequence[int]) -> str:
    """Some ranks, as the beginning of a sentence: ``rank 3``, ``3 ranks (0, 1, 5)``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"{len(ranks):,} ranks ({listed(ranks, _MOST_NAMED)})"


def is_telling(change: RankChange) -> bool:
    """True where the requested peak changed by more than runs of one program do."""
    if change.before is None or change.after is None:
        return False
    return abs(change.change_bytes) > HISTORY_SHARE * change.before.requested_bytes


def _runs(ranks: Sequence[int]) -> str:
    return agreeing(len(ranks), "runs", "run")
