"""A lake: the recordings of many ranks as Parquet, each written by itself, and questions to all of them in SQL.

    ROOT/run=ID/run.json                            how many ranks, which are missing
    ROOT/run=ID/ranks/bucket=B/rank=R.parquet       one row a rank, its summary with it
    ROOT/run=ID/lines/…                             what each line held: the summary in columns
    ROOT/run=ID/steps/…                             the peak of each step
    ROOT/run=ID/events/…                            every event; stack is an id of stacks
    ROOT/run=ID/stacks/…                            frames by the hash of their text: the same id on every rank
    ROOT/run=ID/collectives/…                       the flight record

64 ranks share a bucket, so that no folder grows without bound. DuckDB writes and reads all of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vramlens.api import load
from vramlens.errors import InputError, UsageError
from vramlens.fleet.summary_json import summary_from_json, summary_to_json
from vramlens.ranks import RankSummary, summarise
from vramlens.read.flight_record import read_flight_record
from vramlens.trace import NO_STACK, Action, Frame, Stacks, Trace
from vramlens.trace.flight import Collective, FlightGroup, FlightRecord

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLES = ("ranks", "lines", "steps", "events", "stacks", "collectives")
_BUCKET = 64
_ROW_GROUP = 131_072
_MEMORY_LIMIT = "1500MB"
_ACTIONS = ", ".join(f"'{action.name.lower()}'" for action in Action)
# Texts are made by DuckDB from numbers: a million Python strings would take longer than everything else.
_SELECT = {"events": f"SELECT * REPLACE ([{_ACTIONS}][action + 1] AS action) FROM columns"}


def connect(threads: int | None = None) -> DuckDBPyConnection:
    """A connection to an empty DuckDB that takes at most 1.5 GB and loads nothing from anywhere.

    Raises:
        UsageError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise UsageError("a lake needs DuckDB: pip install 'vramlens[fleet]'") from None
    settings: dict[str, Any] = {"memory_limit": _MEMORY_LIMIT, "autoinstall_known_extensions": False}
    if threads is not None:
        settings["threads"] = threads
    return duckdb.connect(config=settings)


def write_rank(root: str, run: str, rank: int, recording: str | None, flight: str | None) -> int:
    """Writes what there is of a rank into a lake, and gives the number of its events; what the map runs for each.

    A rank whose row is there and not older than its files is left as it is: an export that was stopped goes on.

    Raises:
        VramlensError: a file cannot be read, or DuckDB is not installed.
        OSError: the lake cannot be written.
    """
    base = Path(root) / f"run={run}"
    if _is_there(base, rank, (recording, flight)):
        return 0
    connection, events = connect(threads=1), 0
    if recording is not None:
        trace = load(recording)
        summary = summarise(trace, rank)
        tables = {"lines": _lines(summary), "steps": _steps(summary), **_events(trace, summary)}
        events = len(tables["events"]["seq"])
        for name, columns in tables.items():
            _write(connection, base, name, rank, columns)
        last = _rank_row(summary)
    else:
        last = None
    if flight is not None:
        _write(connection, base, "collectives", rank, _collectives(rank, read_flight_record(flight)))
    # The row of the rank comes last: with it the rank is whole.
    if last is not None:
        _write(connection, base, "ranks", rank, last)
    return events


def write_run(root: str, run: str, facts: Mapping[str, Any]) -> None:
    """Writes ``run.json``: what is known of the run as a whole."""
    folder = Path(root) / f"run={run}"
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f".run.json.{os.getpid()}"
    scratch.write_text(json.dumps(facts, indent=1))
    scratch.replace(folder / "run.json")


class Lake:
    """A lake that is there, to ask.

    Args:
        root: its folder.
        run: which run of it; by default the only one.

    Raises:
        InputError: there is no lake, no such run, or several runs and none was named.
    """

    def __init__(self, root: str | os.PathLike[str], run: str | None = None) -> None:
        runs = sorted(path.name[4:] for path in Path(root).glob("run=*") if path.is_dir())
        if not runs:
            raise InputError(f"{os.fspath(root)}: no lake: it holds no run=… folder")
        if run is None and len(runs) > 1:
            raise InputError(f"{os.fspath(root)}: holds several runs ({', '.join(runs[:5])}); name one with --run")
        if run is not None and run not in runs:
            raise InputError(f"{os.fspath(root)}: holds no run {run}; there are {', '.join(runs[:5])}")
        self.run = run or runs[0]
        self._base = Path(root) / f"run={self.run}"

    def sql(self, question: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns' names and the rows of an answer; the tables are views named as TABLES are.

        Raises:
            UsageError: DuckDB refuses it.
        """
        import duckdb

        connection = connect()
        self._make_views(connection)
        try:
            found = connection.execute(question)
            return [column[0] for column in found.description or ()], found.fetchall()
        except duckdb.Error as error:
            raise UsageError(f"--sql: {str(error).splitlines()[0]} (tables: {', '.join(TABLES)})") from None

    def summaries(self) -> tuple[RankSummary, ...]:
        """The summary of every rank that is there."""
        if not any((self._base / "ranks").rglob("*.parquet")):
            return ()
        _, rows = self.sql("SELECT summary FROM ranks ORDER BY rank")
        try:
            return tuple(summary_from_json(text) for (text,) in rows)
        except ValueError as error:
            raise InputError(f"{self._base}: {error}") from None

    def flights(self) -> dict[int, FlightRecord]:
        """The flight records that are there, by rank."""
        if not any((self._base / "collectives").rglob("*.parquet")):
            return {}
        _, rows = self.sql("SELECT rank, record FROM collectives WHERE record IS NOT NULL ORDER BY rank")
        return {rank: _flight_from_json(text) for rank, text in rows}

    def facts(self) -> dict[str, Any]:
        """What ``run.json`` says."""
        try:
            found = json.loads((self._base / "run.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _make_views(self, connection: DuckDBPyConnection) -> None:
        for name in TABLES:
            if any((self._base / name).rglob("*.parquet")):
                pattern = str(self._base / name / "*" / "*.parquet").replace("'", "''")
                try:
                    connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{pattern}')")
                except Exception as error:  # DuckDB's, of many kinds: a file that is no Parquet, or cannot be read
                    raise InputError(f"{self._base / name}: {str(error).splitlines()[0]}") from None


def is_lake(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is a lake."""
    return os.path.isdir(path) and any(Path(path).glob("run=*"))


def _is_there(base: Path, rank: int, sources: Sequence[str | None]) -> bool:
    done = _path(base, "ranks", rank)
    try:
        written = done.stat().st_mtime
        return all(source is None or os.stat(source).st_mtime <= written for source in sources)
    except OSError:
        return False


def _path(base: Path, table: str, rank: int) -> Path:
    return base / table / f"bucket={rank // _BUCKET:05d}" / f"rank={rank:05d}.parquet"


def _write(connection: DuckDBPyConnection, base: Path, table: str, rank: int, columns: Mapping[str, Any]) -> None:
    """Writes one file, whole or not at all."""
    target = _path(base, table, rank)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".part")
    os.close(handle)
    try:
        connection.register("columns", dict(columns))
        name = scratch.replace("'", "''")
        select = _SELECT.get(table, "SELECT * FROM columns")
        connection.execute(
            f"COPY ({select}) TO '{name}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROW_GROUP})"
        )
        os.chmod(scratch, 0o644)
        os.replace(scratch, target)
    finally:
        connection.unregister("columns")
        if os.path.exists(scratch):
            os.unlink(scratch)


def _texts(values: Sequence[str | None]) -> NDArray[Any]:
    return np.array(values, dtype=object)


def _rank_row(one: RankSummary) -> dict[str, Any]:
    ledger = dict(one.ledger)
    return {
        "rank": np.array([one.rank], np.int32),
        "host": _texts([one.host or ""]),
        "device": np.array([one.device], np.int32),
        "peak_requested_bytes": np.array([one.peak_requested_bytes], np.int64),
        "peak_allocated_bytes": np.array([one.peak_allocated_bytes], np.int64),
        "peak_reserved_bytes": np.array([one.peak_reserved_bytes], np.int64),
        "nccl_bytes": np.array([ledger.get("nccl", -1)], np.int64),
        "other_processes_bytes": np.array([ledger.get("other_processes", -1)], np.int64),
        "steps": np.array([len(one.step_peaks)], np.int32),
        "failed_us": np.array([one.failure.time_us if one.failure and one.failure.died else 0], np.int64),
        "summary": _texts([summary_to_json(one)]),
    }


def _lines(one: RankSummary) -> dict[str, Any]:
    lines = one.lines
    return {
        "rank": np.full(len(lines), one.rank, np.int32),
        "file": _texts([line.place.file if line.place else "" for line in lines]),
        "line": np.array([line.place.line if line.place else 0 for line in lines], np.int32),
        "function": _texts([line.place.function if line.place else "" for line in lines]),
        "category": _texts([line.category for line in lines]),
        "phase": _texts([line.phase for line in lines]),
        "peak_bytes": np.array([line.peak_bytes for line in lines], np.int64),
        "at_peak_bytes": np.array([line.at_peak_bytes for line in lines], np.int64),
        "allocations": np.array([line.allocations for line in lines], np.int64),
        "total_bytes": np.array([line.total_bytes for line in lines], np.int64),
    }


def _steps(one: RankSummary) -> dict[str, Any]:
    count = len(one.step_peaks)
    return {
        "rank": np.full(count, one.rank, np.int32),
        "step": np.arange(count, dtype=np.int32),
        "peak_bytes": np.array(one.step_peaks, np.int64),
    }


def _events(trace: Trace, summary: RankSummary) -> dict[str, dict[str, Any]]:
    """The events of the rank's device, and the stacks that they name."""
    device = trace.devices.get(summary.device)
    if device is None:
        return {"events": {"seq": np.zeros(0, np.int32), "action": np.zeros(0, np.uint8)}}
    events = device.events
    used = np.unique(events.stack[events.stack != NO_STACK])
    hashes, rows = _stack_hashes(trace.stacks, used)
    identity = np.zeros(len(events), np.uint64)
    known = events.stack != NO_STACK
    identity[known] = hashes[np.searchsorted(used, events.stack[known])]
    count = len(events)
    return {
        "events": {
            "rank": np.full(count, summary.rank, np.int32),
            "seq": np.arange(count, dtype=np.int32),
            "time_us": events.time_us,
            "action": events.action,
            "address": events.address,
            "size_bytes": events.size,
            "stream": events.stream,
            "stack": identity,
        },
        "stacks": {
            "stack": hashes,
            "file": _texts([row[0] for row in rows]),
            "line": np.array([row[1] for row in rows], np.int32),
            "function": _texts([row[2] for row in rows]),
            "frames": _texts([row[3] for row in rows]),
        },
    }


def _stack_hashes(
    stacks: Stacks, used: NDArray[np.uint32]
) -> tuple[NDArray[np.uint64], list[tuple[str, int, str, str]]]:
    """An id of each stack that depends on its text alone, and its user line and frames."""
    hashes, rows = np.zeros(len(used), np.uint64), []
    for place, stack in enumerate(used.tolist()):
        text = "\n".join(map(str, stacks.of(stack)))
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        hashes[place] = int.from_bytes(digest, "little")
        user = int(stacks.user_frame[stack])
        frame = stacks.frame(user) if user >= 0 else Frame("", 0, "")
        rows.append((frame.file, frame.line, frame.function, text))
    return hashes, rows


def _collectives(rank: int, flight: FlightRecord) -> dict[str, Any]:
    """One row a call; the first row has the whole record beside it, so that it can be read back."""
    calls: list[Collective | None] = list(flight.collectives) or [None]
    frames = [None if one is None else one.user_frame for one in calls]
    return {
        "rank": np.full(len(calls), rank, np.int32),
        "group_name": _texts([one.group if one else "" for one in calls]),
        "seq": np.array([one.seq if one else -1 for one in calls], np.int64),
        "name": _texts([one.name if one else "" for one in calls]),
        "state": _texts([one.state if one else "" for one in calls]),
        "created_ns": np.array([one.created_ns or 0 if one else 0 for one in calls], np.int64),
        "file": _texts([frame.file if frame else "" for frame in frames]),
        "line": np.array([frame.line if frame else 0 for frame in frames], np.int32),
        "record": _texts([_flight_to_json(flight), *[None] * (len(calls) - 1)]),
    }


def _flight_to_json(flight: FlightRecord) -> str:
    from dataclasses import asdict

    return json.dumps(
        {
            "source": flight.source,
            "version": flight.version,
            "library_version": flight.library_version,
            "groups": {name: asdict(group) for name, group in flight.groups.items()},
            "last_completed": dict(flight.last_completed),
            "collectives": [asdict(one) for one in flight.collectives],
        },
        separators=(",", ":"),
    )


def _flight_from_json(text: str) -> FlightRecord:
    value = json.loads(text)
    return FlightRecord(
        source=value["source"],
        version=value["version"],
        library_version=value["library_version"],
        groups={
            name: FlightGroup(one["name"], one["description"], tuple(one["ranks"]))
            for name, one in value["groups"].items()
        },
        last_completed=value["last_completed"],
        collectives=tuple(_read_collectives(value["collectives"])),
    )


def _read_collectives(rows: Sequence[dict[str, Any]]) -> Iterator[Collective]:
    for row in rows:
        yield Collective(
            **{
                **row,
                "input_sizes": tuple(map(tuple, row["input_sizes"])),
                "output_sizes": tuple(map(tuple, row["output_sizes"])),
                "dtypes": tuple(row["dtypes"]),
                "frames": tuple(Frame(**frame) for frame in row["frames"]),
            }
        )
