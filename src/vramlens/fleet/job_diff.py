"""Two runs of a job compared, ranks against ranks; and the rank that changed most line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from vramlens.analyses.compare.compared_run import run_of
from vramlens.analyses.compare.diff_answer import Diff
from vramlens.analyses.compare.job_change import JobChange, RankChange, RankState
from vramlens.analyses.compare.run_diff import diff_runs
from vramlens.analyses.finding import Finding
from vramlens.api import Progress, load
from vramlens.errors import InputError, UsageError
from vramlens.fleet.job import compare_files
from vramlens.ranks import Comparison


def diff_jobs(
    before: str, after: str, *, device: int | None = None, progress: Progress | None = None
) -> Diff:
    """What changed between two runs of a job: of all its ranks, and the lines of the one that
    changed most.

    Args:
        before, after: the folders of the ranks' recordings.
        device: the device; by default each rank's fullest.
        progress: called with the share that is done, once for each folder.

    Raises:
        InputError: a folder holds no recordings, or no rank of both has one that can be read.
        UsageError: a folder holds one recording of several devices, and none was chosen.
    """
    old = compare_files([before], progress, device=device)
    new = compare_files([after], progress, device=device)
    for folder, comparison in ((before, old), (after, new)):
        _refuse_devices(folder, comparison)
    changes = _changes(old, new)
    lost = _lost(old, new)
    came, went = _only_in_one(old.findings, new.findings)
    notes = [*_notes("before", old), *_notes("after", new)]
    for change in _worst_first(changes):
        recordings = _recording(old, change.rank), _recording(new, change.rank)
        try:
            runs = [run_of(load(path), device) for path in recordings]
        except InputError as error:
            notes.append(f"rank {change.rank} was not compared line by line: {error}")
            continue
        job = JobChange(
            before=before,
            after=after,
            ranks=changes,
            rank=change.rank,
            came=came,
            went=went,
            lost=lost,
            notes=tuple(notes),
            unjudged=new.unjudged,
        )
        return replace(diff_runs(runs[:1], runs[1:]), job=job)
    why = f" ({notes[-1]})" if notes else ""
    raise InputError(f"{before}, {after}: no rank has a readable recording in both{why}")


def _refuse_devices(folder: str, job: Comparison) -> None:
    """Refuses the devices of one process: they are not ranks."""
    if job.by_device:
        devices = ", ".join(str(summary.device) for summary in job.ranks)
        raise UsageError(
            f"{folder}: contains one recording of devices {devices}: choose one with --device"
        )


def _changes(before: Comparison, after: Comparison) -> tuple[RankChange, ...]:
    old, new = _states(before), _states(after)
    ranks = sorted({*old, *new})
    return tuple(RankChange(rank, old.get(rank), new.get(rank)) for rank in ranks)


def _lost(before: Comparison, after: Comparison) -> tuple[int, ...]:
    """The ranks that only the run before has a recording of; those of a job that was made smaller
    are not.
    """
    world_size = max((summary.world_size or 0 for summary in after.ranks), default=0)
    still_there = {summary.rank for summary in after.ranks}
    return tuple(
        summary.rank
        for summary in before.ranks
        if summary.rank not in still_there and (not world_size or summary.rank < world_size)
    )


def _states(job: Comparison) -> Mapping[int, RankState]:
    return {
        summary.rank: RankState(
            requested_bytes=summary.peak_requested_bytes,
            growth_bytes=sum(leak.bytes_per_step for leak in summary.leaks if leak.verdict.is_sure),
            failed=summary.died,
        )
        for summary in job.ranks
    }


def _worst_first(changes: Sequence[RankChange]) -> list[RankChange]:
    """The ranks of both runs: those that fail now, then those that changed most."""
    in_both = [change for change in changes if change.before is not None and change.after]
    return sorted(
        in_both,
        key=lambda change: (
            not change.fails_now,
            -change.more_growth_bytes,
            -abs(change.change_bytes),
            -(change.after.requested_bytes if change.after else 0),
        ),
    )


def _recording(job: Comparison, rank: int) -> str:
    return next(summary.source for summary in job.ranks if summary.rank == rank)


def _only_in_one(
    before: Sequence[Finding], after: Sequence[Finding]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """What only the run after has, and what only the run before had, by cause and line.

    A line that moved is the same where each run has one such cause.
    """
    unmatched = list(after)
    went = []
    for finding in before:
        alike = [other for other in unmatched if other.id == finding.id]
        counterpart = next((other for other in alike if other.place == finding.place), None)
        if counterpart is None and len(alike) == 1 and _count(before, finding.id) == 1:
            counterpart = alike[0]
        if counterpart is None:
            went.append(finding)
        else:
            unmatched.remove(counterpart)
    return tuple(unmatched), tuple(went)


def _count(findings: Sequence[Finding], cause: str) -> int:
    return sum(finding.id == cause for finding in findings)


def _notes(side: str, job: Comparison) -> Iterator[str]:
    if job.missing:
        named = ", ".join(map(str, job.missing[:8])) + (", …" if len(job.missing) > 8 else "")
        yield f"{side}: no recording of rank {named}"
    yield from (f"{side}: {note}" for note in job.notes)
