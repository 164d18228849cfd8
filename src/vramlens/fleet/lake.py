"""A lake: the recordings of many ranks as Parquet, each written by itself, and questions to all of
them in SQL.

    ROOT/run=ID/run.json                            how many ranks, which are missing
    ROOT/run=ID/ranks/bucket=B/rank=R.parquet       one row a rank, its summary with it
    ROOT/run=ID/lines/…                             what each line held: the summary in columns
    ROOT/run=ID/steps/…                             the peak of each step
    ROOT/run=ID/events/…                            every event; stack is an id of stacks
    ROOT/run=ID/stacks/…                            frames by the hash of their text: the same id
                                                    on every rank
    ROOT/run=ID/collectives/…                       the flight record
    ROOT/run=ID/errors/…                            torchrun's error file

64 ranks share a bucket, so that no folder grows without bound. DuckDB writes and reads all of it.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vramlens.allowance import EXPANDS_TIMES, count_file
from vramlens.api import load
from vramlens.errors import InputError, UsageError, VramlensError
from vramlens.fleet.summary_json import summary_from_json
from vramlens.fleet.tables import (
    collective_rows,
    error_row,
    event_rows,
    flight_from_json,
    line_rows,
    rank_row,
    step_rows,
)
from vramlens.ranks import RankSummary, summarise
from vramlens.read.error_file import read_error_file
from vramlens.read.flight_record import read_flight_record
from vramlens.read.json_bounds import refuse_costly
from vramlens.read.values import MOST_RANKS, as_number, as_text
from vramlens.trace import Action, Frame
from vramlens.trace.flight import FlightRecord
from vramlens.trace.rank_error import RankError
from vramlens.whole_file import whole_file

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLES = ("ranks", "lines", "steps", "events", "stacks", "collectives", "errors")
_BUCKET = 64
_ROW_GROUP = 131_072
# Version 2 stores what ascends as differences: a half to a sixth of the bytes, in less time.
_ENCODING = "PARQUET_VERSION v2, COMPRESSION zstd"
_MEMORY_LIMIT = "1500MB"
_LONGEST_CELLS = 16_000_000
"""Characters of the texts of a table, beside those that its files' sizes justify."""
_LONGEST_TEXT_OF = {"ranks": "summary", "collectives": "record", "errors": "message"}
_Read = TypeVar("_Read")
_ACTIONS = ", ".join(f"'{action.name.lower()}'" for action in Action)


class _Writer(threading.local):
    """The connection of each thread that writes: starting one takes 15 ms and more."""

    connection: DuckDBPyConnection | None = None


_writer = _Writer()


def connect(threads: int | None = None) -> DuckDBPyConnection:
    """A connection to an empty DuckDB that takes at most 1.5 GB and loads nothing from anywhere.

    Raises:
        UsageError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise UsageError("a lake needs DuckDB: pip install 'vramlens[fleet]'") from None
    settings: dict[str, Any] = {
        "memory_limit": _MEMORY_LIMIT,
        "autoinstall_known_extensions": False,
    }
    if threads is not None:
        settings["threads"] = threads
    return duckdb.connect(config=settings)


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of writing a rank: how many events, and what of it could not be read."""

    events: int
    notes: tuple[str, ...] = ()


def write_rank(
    root: str,
    run: str,
    rank: int,
    recording: str | None,
    flight: str | None,
    error: str | None = None,
) -> Written:
    """Writes what there is of a rank into a lake; what the map runs for each.

    A rank whose row is there and not older than its files is left as it is: an export that was
    stopped goes on.

    Args:
        root, run: the lake's folder, and what the run is called.
        rank: its number.
        recording, flight, error: its files; None where there is none.

    Raises:
        VramlensError: the recording cannot be read, or DuckDB is not installed.
        OSError: the lake cannot be written.
    """
    base = Path(root) / f"run={run}"
    if _is_there(base, rank, (recording, flight, error)):
        return Written(0)
    if _writer.connection is None:
        _writer.connection = connect(threads=1)
    connection, events, notes = _writer.connection, 0, []
    tables: dict[str, Mapping[str, Any]] = {}
    readers: dict[str, tuple[str | None, Callable[[str], Mapping[str, Any]]]] = {
        "errors": (error, lambda path: error_row(rank, read_error_file(path))),
        "collectives": (flight, lambda path: collective_rows(rank, read_flight_record(path))),
    }
    for name, (path, read) in readers.items():
        try:
            if path is not None:
                tables[name] = read(path)
        except VramlensError as reason:
            notes.append(str(reason))
    if recording is not None:
        trace = load(recording)
        summary = summarise(trace, rank)
        tables |= {
            "lines": line_rows(summary),
            "steps": step_rows(summary),
            **event_rows(trace, summary),
        }
        events = len(tables["events"]["seq"])
        tables["ranks"] = rank_row(summary)  # the last: with it the rank is whole
    for name, columns in tables.items():
        _write(connection, base, name, rank, columns)
    return Written(events, tuple(notes))


def write_run(root: str, run: str, facts: Mapping[str, Any]) -> None:
    """Writes ``run.json``: what is known of the run as a whole."""
    folder = Path(root) / f"run={run}"
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(str(folder / "run.json")) as file:
        file.write(json.dumps(facts, indent=1).encode())


class Lake:
    """A lake that is there, to ask.

    Args:
        root: its folder.
        run: which run of it; by default the only one.

    Raises:
        InputError: there is no lake, no such run, or several runs and none was named.
    """

    def __init__(self, root: str | os.PathLike[str], run: str | None = None) -> None:
        runs = sorted(path.name[4:] for path in Path(root).glob("run=*") if os.path.isdir(path))
        if not runs:
            raise InputError(f"{os.fspath(root)}: not a lake (it has no run=… folder)")
        if run is None and len(runs) > 1:
            raise InputError(
                f"{os.fspath(root)}: contains several runs ({', '.join(runs[:5])}); choose one "
                "with --run"
            )
        if run is not None and run not in runs:
            raise InputError(
                f"{os.fspath(root)}: contains no run {run}; it has {', '.join(runs[:5])}"
            )
        self.run = run or runs[0]
        self._base = Path(root) / f"run={self.run}"

    def sql(self, question: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns' names and the rows of an answer; the tables are views named as TABLES are.

        Raises:
            UsageError: DuckDB refuses it, or is not installed.
        """
        connection = connect()
        import duckdb

        self._make_views(connection)
        try:
            answer = connection.execute(question)
            return [column[0] for column in answer.description or ()], answer.fetchall()
        except duckdb.Error as error:
            raise UsageError(
                f"--sql: {str(error).splitlines()[0]} (tables: {', '.join(TABLES)})"
            ) from None

    def summaries(self) -> tuple[RankSummary, ...]:
        """The summary of every rank that is there.

        Raises:
            InputError: one of them is not what an export wrote.
        """
        rows = self._rows("ranks", "SELECT summary FROM ranks ORDER BY rank")
        return tuple(self._read("ranks", summary_from_json, *row) for row in rows)

    def flights(self) -> dict[int, FlightRecord]:
        """The flight records that are there, by rank.

        Raises:
            InputError: one of them is not what an export wrote.
        """
        rows = self._rows(
            "collectives",
            "SELECT rank, record FROM collectives WHERE record IS NOT NULL ORDER BY rank",
        )
        return {
            self._read("collectives", _rank, rank): self._read(
                "collectives", flight_from_json, record
            )
            for rank, record in rows
        }

    def errors(self) -> dict[int, RankError]:
        """The error files that are there, by rank, with the user's innermost frame.

        Raises:
            InputError: one of them is not what an export wrote.
        """
        rows = self._rows(
            "errors",
            "SELECT rank, source, message, time_s, file, line, function, follows FROM errors"
            " ORDER BY rank",
        )
        return {
            self._read("errors", _rank, rank): self._read("errors", _error, *row)
            for rank, *row in rows
        }

    def _rows(self, table: str, question: str) -> list[tuple[Any, ...]]:
        """The rows of a table; none where it has no files."""
        files = list((self._base / table).rglob("*.parquet"))
        if not files:
            return []
        sizes = {str(file): os.stat(file).st_size for file in files}
        for name, size in sizes.items():
            count_file(name, size)
        try:
            longest = _LONGEST_TEXT_OF[table]
            ((characters,),) = self.sql(f"SELECT sum(strlen({longest})) FROM {table}")[1]
            if (characters or 0) > _LONGEST_CELLS + EXPANDS_TIMES * sum(sizes.values()):
                raise InputError(
                    f"{self._base / table}: holds {characters:,} characters, more than any "
                    "export writes"
                )
            return self.sql(question)[1]
        # A column is missing, or a file damaged: not a question of the user's.
        except UsageError as error:
            raise InputError(
                f"{self._base / table}: {str(error).removeprefix('--sql: ')}"
            ) from None

    def _read(self, table: str, read: Callable[..., _Read], *cells: object) -> _Read:
        try:
            return read(*cells)
        except ValueError as error:
            raise InputError(f"{self._base / table}: {error}") from None

    def facts(self) -> dict[str, Any]:
        """The facts of ``run.json``."""
        try:
            with open(self._base / "run.json", "rb") as file:
                text = file.read(_LONGEST_CELLS)
            refuse_costly(text)
            facts = json.loads(text)
        except (OSError, ValueError, RecursionError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def _make_views(self, connection: DuckDBPyConnection) -> None:
        for name in TABLES:
            if any((self._base / name).rglob("*.parquet")):
                pattern = (_escaped(str(self._base / name)) + "/*/*.parquet").replace("'", "''")
                try:
                    connection.execute(
                        f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{pattern}')"
                    )
                # DuckDB's, of many kinds: a file that is no Parquet, or cannot be read.
                except Exception as error:
                    raise InputError(f"{self._base / name}: {str(error).splitlines()[0]}") from None


def _rank(value: object) -> int:
    """A rank's number, of a row that anybody may have written.

    Raises:
        ValueError: it is none.
    """
    rank = as_number(value, MOST_RANKS)
    if rank is None:
        raise ValueError(f"{str(value)[:40]} is not a rank")
    return rank


def _error(*cells: object) -> RankError:
    """The error file in a row of the table.

    Raises:
        ValueError: a cell is of another type.
    """
    source, message, time_s, file, line, function, follows = cells
    texts = [as_text(text) for text in (source, message, file, function)]
    is_timed = time_s != -1
    line_number, seconds = as_number(line), as_number(time_s if is_timed else 0)
    if None in texts or line_number is None or seconds is None:
        raise ValueError("a row is invalid; export the run again")
    source, message, file, function = (text or "" for text in texts)
    return RankError(
        source=source,
        message=message,
        time_s=seconds if is_timed else None,
        frames=(Frame(file, line_number, function),) if file else (),
        follows=follows is True,
    )


def _escaped(path: str) -> str:
    """A path in which DuckDB sees no pattern: a folder may be called ``run[1]``."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in path)


def is_lake(path: str | os.PathLike[str]) -> bool:
    """True if a folder is a lake."""
    return os.path.isdir(path) and any(Path(path).glob("run=*"))


def _is_there(base: Path, rank: int, sources: Sequence[str | None]) -> bool:
    try:
        written = _path(base, "ranks", rank).stat().st_mtime
        return all(source is None or os.stat(source).st_mtime <= written for source in sources)
    except OSError:
        return False


def _path(base: Path, table: str, rank: int) -> Path:
    return base / table / f"bucket={rank // _BUCKET:05d}" / f"rank={rank:05d}.parquet"


def _write(
    connection: DuckDBPyConnection, base: Path, table: str, rank: int, columns: Mapping[str, Any]
) -> None:
    """Writes one file, whole or not at all."""
    target = _path(base, table, rank)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".part")
    os.close(handle)
    try:
        connection.register("columns", dict(columns))
        name = scratch.replace("'", "''")
        connection.execute(
            f"COPY ({_select(table, columns)}) TO '{name}' (FORMAT parquet, {_ENCODING},"
            f" ROW_GROUP_SIZE {_ROW_GROUP})"
        )
        os.chmod(scratch, 0o644)
        os.replace(scratch, target)
    finally:
        connection.unregister("columns")
        if os.path.exists(scratch):
            os.unlink(scratch)


def _select(table: str, columns: Mapping[str, Any]) -> str:
    """The question that gives a table's rows: every column of the same type on every rank, also
    where it is empty.
    """
    # Texts made from numbers: a million Python strings would take longer than everything else.
    if table == "events":
        return f"SELECT * REPLACE ([{_ACTIONS}][action + 1] AS action) FROM columns"
    texts = [
        f"CAST({name} AS VARCHAR) AS {name}"
        for name, values in columns.items()
        if values.dtype == object
    ]
    return (
        f"SELECT * REPLACE ({', '.join(texts)}) FROM columns" if texts else "SELECT * FROM columns"
    )
