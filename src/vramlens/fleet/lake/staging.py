"""Staging: a rank's rows, written by its worker, until the commit puts 64 ranks into a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vramlens.api import Recording, load
from vramlens.errors import VramlensError
from vramlens.fleet.lake.lake_layout import staged_path
from vramlens.fleet.lake.lake_rows import (
    collective_rows,
    event_rows,
    failure_rows,
    flight_rows,
    line_rows,
    rank_rows,
    step_rows,
    summary_rows,
)
from vramlens.fleet.lake.lake_tables import TABLES
from vramlens.fleet.lake.parquet_files import write_columns
from vramlens.fleet.lake.store import store_of, told
from vramlens.ranks import RankSummary, summarise
from vramlens.read.error_file import read_error_file
from vramlens.read.flight_record import read_flight_record

_LAST = "summaries"
"""The table that is written last: with it a rank is whole."""


@dataclass(frozen=True, slots=True)
class RankSources:
    """The files of a rank; None where there is none.

    Attributes:
        recording, flight, error: their paths, from the root on.
    """

    recording: str | None
    flight: str | None = None
    error: str | None = None

    @property
    def changed_us(self) -> int:
        """When the newest of them was last changed, in microseconds since the epoch.

        Raises:
            OSError: one has gone.
        """
        paths = (self.recording, self.flight, self.error)
        return max(os.stat(path).st_mtime_ns // 1000 for path in paths if path is not None)


@dataclass(frozen=True, slots=True)
class StagedRank:
    """The outcome of writing a rank: how many events, and what of it could not be read."""

    events: int
    notes: tuple[str, ...] = ()


def summary_of(recording: Recording, rank: int, device: int | None = None) -> RankSummary:
    """The summary of a recording, with the cause of its failure as ``vramlens explain`` has it.

    Args:
        recording: the rank's.
        rank: its number.
        device: the device; by default the rank's own.
    """
    summary = summarise(recording, rank, device)
    if summary.failure is None:
        return summary
    try:
        verdict = recording.oom(summary.device)
    except VramlensError:  # the sums do not hold: the failure is told without a cause
        return summary
    cause = None if verdict is None else verdict.cause
    return replace(summary, failure=replace(summary.failure, cause=cause))


def stage_rank(root: str, run: str, attempt: int, rank: int, sources: RankSources) -> StagedRank:
    """Writes what there is of a rank into the staging area; what the map runs for each.

    Args:
        root: of the lake.
        run, attempt: what it is of.
        rank: its number.
        sources: its files.

    Raises:
        VramlensError: the recording cannot be read, the lake cannot be written, or DuckDB is not
            installed.
        OSError: the lake cannot be written.
    """
    notes: list[str] = []
    error = _read(notes, sources.error, read_error_file)
    flight = _read(notes, sources.flight, read_flight_record)
    tables: dict[str, Mapping[str, Any]] = {}
    summary, events = None, 0
    if sources.recording is not None:
        recording = load(sources.recording)
        summary = summary_of(recording, rank)
        tables |= event_rows(recording, summary)
        tables["lines"] = line_rows(summary)
        tables["steps"] = step_rows(summary)
        tables["ranks"] = rank_rows(summary, sources.changed_us)
        events = len(tables["events"]["seq"]) if "events" in tables else 0
    if flight is not None:
        tables["collectives"] = collective_rows(rank, flight)
        tables["flights"] = flight_rows(rank, flight)
    tables["failures"] = failure_rows(summary, rank, error)
    if summary is not None:
        tables[_LAST] = summary_rows(summary)
    store = store_of(root)
    with told(root):
        for name, columns in tables.items():
            path = staged_path(name, run, attempt, rank)
            write_columns(store, path, TABLES[name], columns, attempt)
    return StagedRank(events, tuple(notes))


def _read(notes: list[str], path: str | None, read: Callable[[str], Any]) -> Any:
    """What a file says; None, and a note, where it cannot be read."""
    if path is None:
        return None
    try:
        return read(path)
    except VramlensError as reason:
        notes.append(str(reason))
        return None
