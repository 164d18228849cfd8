"""A job read: every rank's summary and flight record, from files or from a lake."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from vramlens.api import load
from vramlens.errors import InputError, UsageError, VramlensError
from vramlens.fleet.files import JobFiles, RankFile, find_ranks
from vramlens.fleet.lake import Lake, is_lake, write_rank, write_run
from vramlens.fleet.workers import Progress, for_each, workers, worth_workers
from vramlens.ranks import Comparison, RankSummary, compare, summarise
from vramlens.read.error_file import read_error_file
from vramlens.read.flight_record import read_flight_record
from vramlens.read.values import MOST_RANKS, as_list, as_number, as_text
from vramlens.trace.flight import FlightRecord
from vramlens.trace.rank_error import RankError
from vramlens.units import counted, listed

_MOST_NAMED = 5
_MOST_NOTES = 1000


@dataclass(frozen=True, eq=False)
class Job:
    """What was read of a job.

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
        """How the ranks differ."""
        return compare(
            self.summaries,
            self.flights,
            errors=self.errors,
            missing=self.missing,
            by_device=self.by_device,
            notes=self.notes,
        )


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written to a lake: how many ranks and events, which ranks are missing, and what
    was odd.
    """

    ranks: int
    events: int
    missing: tuple[int, ...]
    notes: tuple[str, ...]


def compare_files(
    paths: Sequence[str | os.PathLike[str]],
    progress: Progress | None = None,
    *,
    where: str | None = None,
    run: str | None = None,
) -> Comparison:
    """How the ranks differ whose recordings and flight records are in these files and folders, or
    in a lake.

    Args:
        paths: files and folders; or one lake.
        progress: called with the share that is done.
        where: what reads the recordings, as ``workers`` takes it.
        run: of a lake, which of its runs.

    Raises:
        InputError: there are none.
        UsageError: ``where`` names nothing that runs.
    """
    if len(paths) == 1 and is_lake(paths[0]):
        return read_lake(Lake(paths[0], run)).compare()
    files = find_ranks(paths)
    if where is None and not worth_workers(len(files.ranks)):
        return read_job(files, progress=progress).compare()
    with workers(where) as executor:
        return read_job(files, executor=executor, progress=progress).compare()


def read_job(
    files: JobFiles, *, executor: Executor | None = None, progress: Progress | None = None
) -> Job:
    """Reads the recordings and flight records of a job.

    A rank that cannot be read is told in ``notes`` and counted as missing; the others are there.

    Args:
        files: what there is.
        executor: where to read the recordings; None is here.
        progress: called with the share that is done.

    Raises:
        InputError: not one of them can be read.
    """
    recorded = {one.rank: one for one in files.ranks if one.recording is not None}
    if len(files.ranks) == 1 and recorded:
        found = _by_device(next(iter(recorded.values())))
        if found:
            return Job(found, {}, (), True, files.notes)
    tasks = {rank: (one.recording, rank) for rank, one in recorded.items()}
    summaries, failed = for_each(tasks, summary_of, executor, progress)
    flights: dict[int, FlightRecord] = {}
    errors: dict[int, RankError] = {}
    odd = list(failed.items())
    for one in files.ranks:
        try:
            if one.error is not None:
                errors[one.rank] = read_error_file(one.error)
        except VramlensError as error:
            odd.append((one.rank, str(error)))
        try:
            if one.flight is not None:
                flights[one.rank] = read_flight_record(one.flight)
        except VramlensError as error:
            odd.append((one.rank, str(error)))
    notes = (*files.notes, *(f"rank {rank}: {why}" for rank, why in sorted(odd)))
    if not summaries and not flights and not errors:
        raise InputError(
            f"no rank's file can be read: {notes[-1].partition(': ')[2] if notes else 'there is none'}"
        )
    ordered = tuple(summaries[rank] for rank in sorted(summaries))
    return Job(
        ordered,
        flights,
        _missing(files.world_size, {*summaries, *flights}, flights),
        False,
        notes,
        errors,
    )


def read_lake(lake: Lake) -> Job:
    """The summaries, flight records and errors that lie in a lake.

    Raises:
        InputError: they cannot be read.
    """
    summaries, flights, errors, facts = (
        lake.summaries(),
        lake.flights(),
        lake.errors(),
        lake.facts(),
    )
    known = {*(one.rank for one in summaries), *flights}
    missing = _missing(as_number(facts.get("world_size"), MOST_RANKS), known, flights)
    notes = [note for note in map(as_text, as_list(facts.get("notes"))[:_MOST_NOTES]) if note]
    return Job(summaries, flights, missing, False, tuple(notes), errors)


def export_lake(
    paths: Sequence[str | os.PathLike[str]],
    root: str,
    run: str,
    *,
    where: str | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Writes the ranks of a job into a lake, each by itself; what is there already and not older
    stays.

    Args:
        paths: files and folders.
        root: the lake's folder.
        run: what the run is to be called.
        where: what does it, as ``workers`` takes it.
        progress: called with the share that is done.

    Raises:
        InputError: there is nothing to export.
        UsageError: the files are of several jobs, ``where`` names nothing that runs, or DuckDB is
            not installed.
    """
    files = find_ranks(paths)
    if files.jobs:
        named = listed(files.jobs, _MOST_NAMED)
        raise UsageError(
            f"{counted(len(files.jobs), 'job')} ({named}) would become one run: name one job's folder"
        )
    tasks = {
        one.rank: (root, run, one.rank, one.recording, one.flight, one.error) for one in files.ranks
    }
    if where is None and not worth_workers(len(tasks)):
        done, failed = for_each(tasks, write_rank, None, progress)
    else:
        with workers(where) as executor:
            done, failed = for_each(tasks, write_rank, executor, progress)
    missing = _missing(files.world_size, set(done), {})
    odd = [*failed.items(), *((rank, why) for rank, one in done.items() for why in one.notes)]
    notes = (*files.notes, *(f"rank {rank}: {why}" for rank, why in sorted(odd)))
    write_run(root, run, {"world_size": files.world_size, "missing": missing, "notes": notes})
    return Exported(len(done), sum(one.events for one in done.values()), missing, notes)


def summary_of(path: str, rank: int) -> RankSummary:
    """The summary of a rank's file; what the map runs for each."""
    return summarise(load(path), rank)


def _by_device(one: RankFile) -> tuple[RankSummary, ...]:
    """The devices of a single recording, where there are several that do work."""
    recording = load(one.recording or "")
    busy = [
        index
        for index, device in recording.devices.items()
        if index >= 0 and len(device.events) > 1
    ]
    if len(busy) < 2:
        return ()
    return tuple(summarise(recording, index, index) for index in sorted(busy))


def _missing(
    world_size: int | None, known: set[int], flights: Mapping[int, FlightRecord]
) -> tuple[int, ...]:
    told = [
        rank
        for flight in flights.values()
        for group in flight.groups.values()
        for rank in group.ranks
    ]
    last = max([*known, *told, (world_size or 0) - 1], default=-1)
    return tuple(rank for rank in range(last + 1) if rank not in known)
