"""An export: the ranks of a job written into a lake, each by itself, and put together at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from vramlens.api import Progress
from vramlens.errors import UsageError, VramlensError
from vramlens.fleet.files import JobFiles, RankFile, find_attempts
from vramlens.fleet.job import missing_ranks, notes_of_ranks, read_lake
from vramlens.fleet.lake import Lake
from vramlens.fleet.lake.commit import commit_attempt, run_row, write_of_attempt
from vramlens.fleet.lake.lake_layout import files_of
from vramlens.fleet.lake.lake_rows import columns_of, finding_rows, moment
from vramlens.fleet.lake.runs import Destination, destination_of
from vramlens.fleet.lake.staging import RankSources, stage_rank
from vramlens.fleet.lake.store import is_url, store_of, told
from vramlens.fleet.process import JobIdentity, identity_of
from vramlens.fleet.workers import ExecutorLike, for_each, workers, worth_workers
from vramlens.ranks import RankSummary


@dataclass(frozen=True, slots=True)
class Exported:
    """The outcome of an export to a lake: the run's name, how many ranks and events, which ranks
    are missing, and what was odd.
    """

    ranks: int
    events: int
    missing: tuple[int, ...]
    notes: tuple[str, ...]
    run: str = ""


def export_lake(
    paths: Sequence[str | os.PathLike[str]],
    root: str,
    run: str,
    *,
    where: str | ExecutorLike | None = None,
    progress: Progress | None = None,
    is_given: bool = True,
) -> Exported:
    """Writes the ranks of a job into a lake, each by itself; what is there already and not older
    stays.

    Args:
        paths: files and folders.
        root: the lake's folder, or a URL that fsspec knows.
        run: what the run is to be called.
        where: what does it, as ``workers`` takes it.
        progress: called with the share that is done.
        is_given: whether somebody chose the name; else a job that finds it taken by another is
            called ``NAME-2``.

    Raises:
        InputError: there is nothing to export, or the lake cannot be written.
        UsageError: the files are of several jobs, the run's name is another job's, ``where`` names
            nothing that runs, or DuckDB is not installed.
    """
    attempts = find_attempts(paths)
    for files in attempts:
        _refuse_several_jobs(files)
    source = os.path.abspath(paths[0])
    root = store_of(root).root if is_url(root) else os.path.abspath(root)
    exported = []
    count = sum(len(files.ranks) for files in attempts)
    is_here = where is None and not worth_workers(count)
    with nullcontext() if is_here else workers(where) as executor:
        name, chosen = run, is_given
        for files in attempts:
            identity = identity_of(files.processes, source)
            with told(root):
                destination = destination_of(
                    store_of(root), name, identity, files.attempt, is_given=chosen
                )
            export = _Export(root, destination, files, identity)
            exported.append(export.run(executor, progress))
            name, chosen = destination.run, True
    return _together(exported)


def _refuse_several_jobs(files: JobFiles) -> None:
    if files.several_jobs:
        raise UsageError(f"{files.several_jobs} would become one run: choose the folder of one job")


def _together(exported: Sequence[Exported]) -> Exported:
    last = exported[-1]
    return Exported(
        ranks=sum(part.ranks for part in exported),
        events=sum(part.events for part in exported),
        missing=last.missing,
        notes=tuple(dict.fromkeys(note for part in exported for note in part.notes)),
        run=last.run,
    )


@dataclass(frozen=True, eq=False)
class _Export:
    """The export of one attempt.

    Attributes:
        root, destination: where it goes.
        files: what is exported.
        identity: of the job.
    """

    root: str
    destination: Destination
    files: JobFiles
    identity: JobIdentity

    def run(self, executor: ExecutorLike | None, progress: Progress | None) -> Exported:
        """Stages every rank that is new, commits them, and writes what rests on all of them."""
        run, attempt = self.destination.run, self.destination.attempt
        present = self._sources_there()
        tasks = {}
        for file in self.files.ranks:
            sources = _sources(file)
            if present.get(file.rank, -1) < sources.changed_us:
                tasks[file.rank] = (self.root, run, attempt, file.rank, sources)
        written, failed = for_each(tasks, stage_rank, executor, progress)
        if written:
            commit_attempt(self.root, run, attempt, executor)
        reasons = [(rank, note) for rank, rows in written.items() for note in rows.notes]
        notes = [
            *self.files.notes,
            *([self.destination.note] if self.destination.note else []),
            *notes_of_ranks([*failed.items(), *reasons]),
        ]
        ranks = {*written, *present}
        missing = missing_ranks(self.files.world_size, ranks, {})
        if ranks:
            self._write_of_all(ranks, missing, notes)
        return Exported(
            ranks=len(ranks),
            events=sum(rows.events for rows in written.values()),
            missing=missing,
            notes=tuple(notes),
            run=run,
        )

    def _sources_there(self) -> dict[int, int]:
        """By rank that lies in the lake, when its files had been changed."""
        with told(self.root):
            store = store_of(self.root)
            attempts = files_of(store, ("summaries",)).attempts
        if self.destination.attempt not in attempts.get(self.destination.run, []):
            return {}
        lake = Lake(self.root, self.destination.run, self.destination.attempt)
        _, rows = lake.sql(
            "SELECT rank, source_us FROM ranks SEMI JOIN summaries USING (run, attempt, rank)"
            " WHERE source_us IS NOT NULL"
        )
        return {rank: source_us for rank, source_us in rows if isinstance(rank, int)}

    def _write_of_all(self, ranks: set[int], missing: Sequence[int], notes: Sequence[str]) -> None:
        """Writes the tables that rest on all ranks together; the row of ``runs`` is the last."""
        run, attempt = self.destination.run, self.destination.attempt
        store = store_of(self.root)
        summaries: tuple[RankSummary, ...] = ()
        findings: Mapping[str, Any] = {}
        try:
            job = read_lake(Lake(self.root, run, attempt))
            summaries, findings = job.summaries, finding_rows(job.compare())
        except VramlensError:  # error files only: there is nothing to compare
            pass
        with told(self.root):
            write_of_attempt(store, "findings", run, attempt, findings)
            row = run_row(self._facts(summaries, ranks, missing, notes))
            write_of_attempt(store, "runs", run, attempt, columns_of([row]))

    def _facts(
        self,
        summaries: Sequence[RankSummary],
        ranks: set[int],
        missing: Sequence[int],
        notes: Sequence[str],
    ) -> dict[str, object]:
        ends = [summary.ended[1] for summary in summaries if summary.ended is not None]
        hosts = {summary.host for summary in summaries if summary.host}
        return {
            "job": self.identity.job,
            "command": self.identity.command or None,
            "host": self.identity.host,
            "hosts": len(hosts) or None,
            "world_size": self.files.world_size,
            "ranks": len(ranks),
            "missing_ranks": json.dumps(list(missing)),
            "started_at": moment(self.identity.started_us),
            "ended_at": moment(max(ends, default=None)),
            "source": self.identity.source,
            "notes": json.dumps(list(notes)),
        }


def _sources(file: RankFile) -> RankSources:
    """The files of a rank from the root on: a worker of another machine has a folder of its own."""
    paths = (file.recording, file.flight, file.error)
    recording, flight, error = (None if path is None else os.path.abspath(path) for path in paths)
    return RankSources(recording, flight, error)
