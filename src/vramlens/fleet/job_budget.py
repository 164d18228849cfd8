"""A job's folder held against a budget: each rank's recording by itself, wherever the map runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from vramlens.analyses.budget.budget import Check, check_run
from vramlens.analyses.budget.budget_file import Budget
from vramlens.analyses.budget.budget_update import RunFigures, Update, figures_of, update_from
from vramlens.analyses.budget.job_check import check_of_job
from vramlens.analyses.compare.compared_run import Run, run_of
from vramlens.api import Progress, load
from vramlens.errors import InputError
from vramlens.fleet.files import find_ranks
from vramlens.fleet.job import notes_of_ranks
from vramlens.fleet.workers import for_each, workers, worth_workers

_NO_RECORDING = "left no recording"


@dataclass(frozen=True, slots=True)
class _JobRecordings:
    """What a job left.

    Attributes:
        recordings: of the last attempt, by rank.
        missing: the ranks that left none.
        notes: what is odd about the files, one sentence each.
    """

    recordings: Mapping[int, str]
    missing: Sequence[int]
    notes: tuple[str, ...]


def check_job(
    folder: str,
    budget: Budget,
    baseline: str | None = None,
    *,
    device: int | None = None,
    progress: Progress | None = None,
) -> Check:
    """A job held against a budget: the worst rank decides each limit.

    Args:
        folder: of the ranks' recordings.
        budget: the limits.
        baseline: the folder of a run that kept them, rank by rank; or one recording for all.
        device: the device; by default each rank's fullest.
        progress: called with the share that is done.

    Raises:
        InputError: the folder holds no recording that can be read, or those of several jobs.
    """
    job = _recordings_of(folder)
    recordings = job.recordings
    baselines, baseline_notes = _baselines(baseline, recordings)
    tasks = {rank: (path, budget, baselines.get(rank), device) for rank, path in recordings.items()}
    with nullcontext() if not worth_workers(len(tasks)) else workers(None) as executor:
        checks, unread = for_each(tasks, check_of_rank, executor, progress)
    if not checks:
        raise InputError(f"{folder}: no rank can be checked: {notes_of_ranks(unread.items())[0]}")
    unread |= dict.fromkeys(job.missing, _NO_RECORDING)
    check = check_of_job(folder, {rank: checks[rank] for rank in sorted(checks)}, unread)
    return replace(check, notes=(*job.notes, *baseline_notes))


def update_job(folder: str, budget: Budget | None, device: int | None = None) -> Update:
    """A budget that every rank of a job keeps.

    Raises:
        InputError: a rank has no recording or none that can be read, the folder holds several
            jobs; or as ``update``.
    """
    job = _recordings_of(folder)
    tasks = {rank: (path, budget, device) for rank, path in job.recordings.items()}
    with nullcontext() if not worth_workers(len(tasks)) else workers(None) as executor:
        figures, unread = for_each(tasks, figures_of_rank, executor)
    unread |= dict.fromkeys(job.missing, _NO_RECORDING)
    if unread:
        raise InputError(
            f"{folder}: no limits were taken from it, because {notes_of_ranks(unread.items())[0]}"
        )
    updated = update_from([figures[rank] for rank in sorted(figures)], budget)
    return replace(updated, notes=job.notes)


def check_of_rank(path: str, budget: Budget, baseline: str | None, device: int | None) -> Check:
    """One rank held against a budget; what the map runs for each."""
    baseline_run = None if baseline is None else _run(baseline, device)
    return check_run(_run(path, device), budget, baseline_run)


def figures_of_rank(path: str, budget: Budget | None, device: int | None) -> RunFigures:
    """The figures of one rank that become limits; what the map runs for each."""
    return figures_of(_run(path, device), budget)


def _run(path: str, device: int | None) -> Run:
    return run_of(load(path), device)


def _recordings_of(folder: str) -> _JobRecordings:
    """The recordings of a job's last attempt.

    Raises:
        InputError: there is none, or they are of several jobs.
    """
    files = find_ranks([folder])
    if files.several_jobs:
        raise InputError(
            f"{folder}: {files.several_jobs} would be checked as one: choose the folder of one job"
        )
    recordings = {file.rank: file.recording for file in files.ranks if file.recording is not None}
    if not recordings:
        raise InputError(f"{folder}: contains no recording")
    without = [file.rank for file in files.ranks if file.recording is None]
    return _JobRecordings(recordings, (*without, *files.missing), files.notes)


def _baselines(
    baseline: str | None, recordings: Mapping[int, str]
) -> tuple[Mapping[int, str], Sequence[str]]:
    """By rank, the recording that it is compared with; and what is odd about them.

    Raises:
        InputError: the folder of the baseline holds no recording, or those of several jobs.
    """
    if baseline is None:
        return {}, ()
    if not os.path.isdir(baseline):
        return dict.fromkeys(recordings, baseline), ()
    job = _recordings_of(baseline)
    return job.recordings, [f"baseline: {note}" for note in job.notes]
