"""A job read: every rank's summary and flight record, from files or from a lake."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from vramlens.analyses.recording_explanation import choose_device
from vramlens.api import Progress, load
from vramlens.capture.process.undisturbed import no_collection
from vramlens.errors import InputError, UsageError
from vramlens.fleet.files import JobFiles, find_ranks
from vramlens.fleet.lake import Lake, is_lake
from vramlens.fleet.lake.staging import summary_of as summary_of_recording
from vramlens.fleet.trace_notes import times_of_trace, trace_notes
from vramlens.fleet.workers import ExecutorLike, for_each, workers, worth_workers
from vramlens.ranks import Comparison, RankSummary, compare, summarise
from vramlens.read.error_file import read_error_file
from vramlens.read.flight_record import read_flight_record
from vramlens.read.values import MOST_RANKS, as_list, as_number, as_text
from vramlens.trace import Trace
from vramlens.trace.flight import FlightRecord
from vramlens.trace.rank_error import RankError

_MOST_NOTES = 1000


@dataclass(frozen=True, eq=False)
class Job:
    """A job as it was read.

    Attributes:
        summaries: of each rank with a recording that could be read.
        flights: by rank.
        errors: error files, by rank.
        missing: ranks of which there is nothing that could be read.
        by_device: whether the "ranks" are the devices of one process.
        notes: what is odd, one sentence each.
    """

    summaries: tuple[RankSummary, ...]
    flights: Mapping[int, FlightRecord]
    missing: tuple[int, ...]
    by_device: bool
    notes: tuple[str, ...]
    errors: Mapping[int, RankError] = field(default_factory=dict)

    def compare(self) -> Comparison:
        """The differences of the ranks."""
        return compare(
            self.summaries,
            self.flights,
            errors=self.errors,
            missing=self.missing,
            by_device=self.by_device,
            notes=self.notes,
        )


def compare_files(
    paths: Sequence[str | os.PathLike[str]],
    progress: Progress | None = None,
    *,
    where: str | ExecutorLike | None = None,
    run: str | None = None,
    attempt: int | None = None,
    device: int | None = None,
) -> Comparison:
    """The differences of the ranks whose recordings and flight records are in these files and
    folders, or in a lake.

    Args:
        paths: files and folders; or one lake.
        progress: called with the share that is done.
        where: what reads the recordings, as ``workers`` takes it.
        run: of a lake, which of its runs.
        attempt: which start of the job, by its launcher's count; by default the last.
        device: the device of each recording; by default its fullest.

    Raises:
        InputError: there are none.
        UsageError: ``where`` names nothing that runs, or a device of a lake is asked for.
    """
    if len(paths) == 1 and is_lake(paths[0]):
        if device is not None:
            raise UsageError(
                f"{paths[0]}: a lake contains each rank's fullest device only: leave out --device"
            )
        return read_lake(Lake(paths[0], run, attempt)).compare()
    with no_collection():  # summaries of thousands of ranks: small objects, none of them garbage
        files = find_ranks(paths, attempt)
    _refuse_several_jobs(files)
    unread = sum(file.recording is not None and file.summary is None for file in files.ranks)
    is_here = where is None and not worth_workers(unread)
    with nullcontext() if is_here else workers(where) as executor:
        job = read_job(files, executor=executor, progress=progress, device=device)
    return job.compare()


def _refuse_several_jobs(files: JobFiles) -> None:
    """Ranks of different jobs differ for many reasons, none of which is a fault."""
    if files.several_jobs:
        raise InputError(
            f"{files.several_jobs} would be compared as one: choose the folder of one job, or name"
            " the files"
        )


def read_job(
    files: JobFiles,
    *,
    executor: ExecutorLike | None = None,
    progress: Progress | None = None,
    device: int | None = None,
) -> Job:
    """Reads the recordings and flight records of a job.

    A rank that cannot be read is told in ``notes`` and counted as missing; the others are there.

    Args:
        files: what there is.
        executor: where to read the recordings; None is here.
        progress: called with the share that is done.
        device: the device of each recording; by default its fullest.

    Raises:
        InputError: not one of them can be read.
    """
    lone_recording = _lone_recording(files) if device is None else None
    if lone_recording is None:
        summaries, unread = _read_summaries(files, executor, progress, device)
    else:
        trace = load(lone_recording)
        devices = _busy_devices(trace)
        if len(devices) > 1:
            return _job_of_devices(trace, devices, files.notes)
        rank = files.ranks[0].rank
        summaries, unread = for_each({rank: (trace, rank)}, summarise, None, progress)
    errors, unread_errors = for_each(_of_each_rank(files, "error"), read_error_file)
    flights, unread_flights = for_each(_of_each_rank(files, "flight"), read_flight_record)
    traces = {file.rank: (file.recording,) for file in files.ranks if file.is_profiler_trace}
    times, _unreadable = for_each(traces, times_of_trace, executor)  # told where memory is read
    reasons = [*unread.items(), *unread_errors.items(), *unread_flights.items()]
    notes = (*files.notes, *notes_of_ranks(reasons), *trace_notes(times))
    if not summaries and not flights and not errors:
        reason = notes[-1].partition(": ")[2] if notes else "there is none"
        raise InputError(f"no file of any rank can be read: {reason}")
    return Job(
        summaries=tuple(summaries[rank] for rank in sorted(summaries)),
        flights=flights,
        missing=missing_ranks(files.world_size, {*summaries, *flights}, flights),
        by_device=False,
        notes=notes,
        errors=errors,
    )


def _lone_recording(files: JobFiles) -> str | None:
    """The recording to be read, where there is no other rank."""
    if len(files.ranks) != 1 or files.ranks[0].summary is not None:
        return None
    return files.ranks[0].recording


def _read_summaries(
    files: JobFiles, executor: ExecutorLike | None, progress: Progress | None, device: int | None
) -> tuple[dict[int, RankSummary], dict[int, str]]:
    """The summaries of the ranks, and why those of others cannot be had."""
    summarised = {
        file.rank: file.summary
        for file in files.ranks
        if file.summary is not None and device in (None, file.summary.device)
    }
    tasks = {
        file.rank: (file.recording, file.rank, device)
        for file in files.ranks
        if file.recording is not None and file.rank not in summarised
    }
    summaries, unread = for_each(tasks, summary_of, executor, progress)
    return {**summaries, **summarised}, unread


def _of_each_rank(files: JobFiles, kind: str) -> dict[int, tuple[str]]:
    """The paths of a kind of file, by rank."""
    paths = {file.rank: getattr(file, kind) for file in files.ranks}
    return {rank: (path,) for rank, path in paths.items() if path is not None}


def _job_of_devices(trace: Trace, devices: Sequence[int], notes: tuple[str, ...]) -> Job:
    """One process's devices as if they were ranks."""
    return Job(
        summaries=tuple(summarise(trace, device, device) for device in devices),
        flights={},
        missing=(),
        by_device=True,
        notes=notes,
    )


def read_lake(lake: Lake) -> Job:
    """The summaries, flight records and errors of an attempt that lie in a lake.

    Raises:
        InputError: they cannot be read, or there are several runs and none was named.
    """
    summaries, flights, errors = lake.summaries(), lake.flights(), lake.errors()
    facts = lake.facts()
    if not summaries and not flights and not errors:
        reason = lake.notes[0] if lake.notes else f"run {lake.run} holds no rank"
        raise InputError(f"{lake.root}: {reason}")
    present = {*(summary.rank for summary in summaries), *flights}
    told_sizes = [summary.world_size or 0 for summary in summaries]
    world_size = max([as_number(facts.get("world_size"), MOST_RANKS) or 0, *told_sizes])
    return Job(
        summaries=summaries,
        flights=flights,
        missing=missing_ranks(world_size or None, present, flights),
        by_device=False,
        notes=tuple(dict.fromkeys([*_notes_of_attempt(lake, facts), *lake.notes])),
        errors=errors,
    )


def _notes_of_attempt(lake: Lake, facts: Mapping[str, object]) -> list[str]:
    entries = as_list(facts.get("notes"))[:_MOST_NOTES]
    notes = [note for note in map(as_text, entries) if note]
    if not lake.is_committed:
        notes.append("the export into this lake did not finish: run it again")
    if len(lake.runs[lake.run]) > 1:
        numbers = ", ".join(map(str, lake.runs[lake.run]))
        notes.append(
            f"the job has attempts {numbers}: this is {lake.attempt}; --attempt N reads another"
        )
    return notes


def summary_of(path: str, rank: int, device: int | None = None) -> RankSummary:
    """The summary of a rank's file; what the map runs for each.

    Raises:
        UsageError: the recording has no such device.
    """
    recording = load(path)
    if device is not None:
        choose_device(recording, device)
    return summary_of_recording(recording, rank, device)


def _busy_devices(trace: Trace) -> list[int]:
    """The devices of a recording that do work."""
    return sorted(
        index for index, device in trace.devices.items() if index >= 0 and len(device.events) > 1
    )


def notes_of_ranks(reasons: Iterable[tuple[int, str]]) -> list[str]:
    """One sentence a rank of which something could not be read."""
    return [f"rank {rank}: {reason}" for rank, reason in sorted(reasons)]


def missing_ranks(
    world_size: int | None, present: set[int], flights: Mapping[int, FlightRecord]
) -> tuple[int, ...]:
    """The ranks that a job had, as far as its files say, and that are not present."""
    last = max([*present, (world_size or 0) - 1], default=-1)
    for flight in flights.values():
        last = max([last, *(max(group.ranks, default=-1) for group in flight.groups.values())])
    return tuple(rank for rank in range(last + 1) if rank not in present)
