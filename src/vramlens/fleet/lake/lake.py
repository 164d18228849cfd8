"""A lake that is there: its jobs read back, and questions to all of them in SQL."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from vramlens.allowance import EXPANDS_TIMES, count_file, count_lake, is_bounded
from vramlens.errors import InputError, UsageError
from vramlens.fleet.lake.lake_layout import LakeFiles, files_of
from vramlens.fleet.lake.lake_layout import is_lake as holds_lake
from vramlens.fleet.lake.lake_tables import TABLES
from vramlens.fleet.lake.one_select import check_question, lock, refusal, refuse_writing, refused
from vramlens.fleet.lake.parquet_files import connect, escaped, identifier, literal
from vramlens.fleet.lake.store import store_of, told
from vramlens.fleet.lake.views import Views, damage_note
from vramlens.fleet.summary_json import summary_from_json
from vramlens.fleet.typed_json import from_json
from vramlens.ranks import RankSummary
from vramlens.read.values import MOST_RANKS, as_number, as_text
from vramlens.trace import Frame
from vramlens.trace.flight import FlightRecord
from vramlens.trace.rank_error import RankError
from vramlens.units import first_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_LONGEST_CELLS = 16_000_000
"""Characters of the texts of a table, beside those that its files' sizes justify."""
_LONGEST_TEXT_OF = {"summaries": "summary", "flights": "record", "failures": "message"}
_MOST_NAMED = 5
_MOST_NOTES = 1000
_ROWS_AT_ONCE = 256
_CELL_BYTES = 8
_Read = TypeVar("_Read")
_Row = tuple[Any, ...]


class Lake:
    """A lake that is there, to ask.

    Args:
        root: its folder, or a URL that fsspec knows.
        run: which run of it; by default all for questions, and the only one for a comparison.
        attempt: which attempt of the run; by default all for questions, and the last for a
            comparison.

    Attributes:
        runs: the attempts of each run, by its name.

    Raises:
        InputError: there is no lake, or no such run or attempt.
    """

    def __init__(
        self, root: str | os.PathLike[str], run: str | None = None, attempt: int | None = None
    ) -> None:
        self.root = os.fspath(root)
        self._store = store_of(root)
        with told(self.root):
            files = files_of(self._store)
        self.runs = files.attempts
        if not self.runs:
            raise InputError(f"{self.root}: no lake: it holds no run=… folder")
        if run is not None and run not in self.runs:
            raise InputError(f"{self.root}: holds no run {run}; there are {self._named_runs()}")
        if attempt is not None and run is not None and attempt not in self.runs[run]:
            numbers = ", ".join(map(str, self.runs[run][:_MOST_NAMED]))
            raise InputError(f"{self.root}: run {run} has no attempt {attempt}; it has {numbers}")
        self._run, self._attempt = run, attempt
        self._files = files if run is None else files.of_run(run, attempt)
        self._damaged: frozenset[str] = frozenset()
        self._unread: list[str] = []

    @property
    def run(self) -> str:
        """The run that is compared.

        Raises:
            InputError: there are several and none was named.
        """
        if self._run is None and len(self.runs) > 1:
            raise InputError(
                f"{self.root}: holds several runs ({self._named_runs()}); name one with --run"
            )
        return self._run or next(iter(self.runs))

    @property
    def attempt(self) -> int:
        """The attempt that is compared: the one that was named, else the last.

        Raises:
            InputError: there are several runs and none was named.
        """
        return self.runs[self.run][-1] if self._attempt is None else self._attempt

    @property
    def notes(self) -> list[str]:
        """What could not be read so far, one sentence each."""
        return [*damage_note(self._damaged), *self._unread]

    def _named_runs(self) -> str:
        return first_of(list(self.runs), _MOST_NAMED)

    def sql(self, question: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns' names and the rows of an answer; the tables are views named as TABLES are.

        Raises:
            UsageError: DuckDB refuses it, or is not installed.
        """
        return self.read_sql(question, _all_rows)

    def read_sql(self, question: str, read: Callable[[list[str], Iterable[_Row]], _Read]) -> _Read:
        """What ``read`` makes of the columns' names and the rows of an answer, which come one by
        one: however many they are, they take no memory.

        Args:
            read: called again, from the first row, where files turn out damaged on the way.

        Raises:
            UsageError: DuckDB refuses it, or is not installed.
        """
        return self._asked(question, self._files, read, is_users=True)

    def summaries(self) -> tuple[RankSummary, ...]:
        """The summary of every rank of the attempt that can be read; the others are in ``notes``.

        Raises:
            InputError: none can be read.
        """
        rows = self._rows("summaries", "SELECT rank, summary FROM summaries ORDER BY rank")
        return tuple(self._of_ranks(rows, summary_from_json, "summary").values())

    def flights(self) -> dict[int, FlightRecord]:
        """The flight records of the attempt that can be read, by rank.

        Raises:
            InputError: there are some, and none can be read.
        """
        rows = self._rows("flights", "SELECT rank, record FROM flights ORDER BY rank")
        return self._of_ranks(rows, flight_from_json, "flight record")

    def errors(self) -> dict[int, RankError]:
        """The error files of the attempt that can be read, by rank, with the user's innermost
        frame.

        Raises:
            InputError: there are some, and none can be read.
        """
        rows = self._rows(
            "failures",
            "SELECT rank, source, message, epoch_us(failed_at), file, line, function, follows"
            " FROM failures WHERE kind = 'error_file' ORDER BY rank",
        )
        return self._of_ranks(rows, _error, "error file")

    def facts(self) -> dict[str, Any]:
        """The row of ``runs``; empty where the export was not committed."""
        names, rows = self._asked("SELECT * FROM runs", self._attempt_files(), _all_rows)
        return dict(zip(names, rows[0], strict=True)) if rows else {}

    @property
    def is_committed(self) -> bool:
        """True where the export of the attempt came to its end."""
        files = self._attempt_files()
        staged = any(files.staged.values())
        is_old = any(file.is_old for table_files in files.by_table.values() for file in table_files)
        return is_old or (bool(files.by_table.get("runs")) and not staged)

    def _attempt_files(self) -> LakeFiles:
        return self._files.of_run(self.run, self.attempt)

    def _asked(
        self,
        question: str,
        files: LakeFiles,
        read: Callable[[list[str], Iterable[_Row]], _Read],
        *,
        is_users: bool = False,
    ) -> _Read:
        """What is made of the answer; files that turn out damaged are left out, and noted.

        Args:
            is_users: whether the question is the user's own.

        Raises:
            UsageError: DuckDB refuses the question.
        """
        connection = connect()
        import duckdb

        names = [name for name in TABLES if re.search(rf"(?i)\b{name}\b", question)]
        wrong_questions = (
            duckdb.CatalogException,
            duckdb.BinderException,
            duckdb.ParserException,
            duckdb.PermissionException,
        )
        with told(self.root), TemporaryDirectory(prefix="vramlens-lake-") as scratch:
            self._store.attach(connection)
            connection.execute(f"SET temp_directory = {literal(scratch)}")
            lock(connection, self._spellings(names, files))
            check_question(connection, question)
            views = Views(connection, self._store, files, self._damaged)
            try:
                views.make_all(names)
                if is_users:
                    self._count(connection, names, files)
                answer = _executed(connection, question, read)
            except wrong_questions as error:
                raise refusal(error) from None
            except duckdb.Error as error:
                if not views.find_damage(names):
                    raise refusal(error) from None
                views.make_all(names)
                with refused():
                    answer = _executed(connection, question, read)
            finally:
                self._damaged = views.damaged
                connection.close()
        return answer

    def _spellings(self, names: Sequence[str], files: LakeFiles) -> Iterator[str]:
        """The paths of the files of some tables, in every form in which DuckDB asks for them."""
        for name in names:
            for file in files.of(name):
                for path in self._store.spellings(file.path):
                    yield path
                    yield escaped(path)

    def _count(
        self, connection: DuckDBPyConnection, names: Sequence[str], files: LakeFiles
    ) -> None:
        """Counts the tables that a question is about, for the allowance of the verb."""
        if not is_bounded():
            return
        size_bytes = sum(file.size_bytes for name in names for file in files.of(name))
        count_lake(self.root, size_bytes, rows_bytes=0)
        rows_bytes = 0
        for name in names:
            ((rows,),) = connection.execute(f"SELECT count(*) FROM {identifier(name)}").fetchall()
            rows_bytes += _CELL_BYTES * rows * (1 + len(TABLES[name].columns))
        count_lake(self.root, size_bytes, rows_bytes)

    def _rows(self, table: str, question: str) -> list[tuple[Any, ...]]:
        """The rows of a table of the attempt; none where it has no files.

        Raises:
            InputError: they hold more text than their sizes justify, or cannot be read.
        """
        files = self._attempt_files()
        sizes = {file.path: file.size_bytes for file in files.of(table)}
        if not sizes:
            return []
        for path, size in sizes.items():
            count_file(self._store.full(path), size)
        longest = _LONGEST_TEXT_OF[table]
        try:
            question_of_length = f"SELECT sum(strlen({longest})) FROM {table}"
            ((characters,),) = self._asked(question_of_length, files, _all_rows)[1]
            if (characters or 0) > _LONGEST_CELLS + EXPANDS_TIMES * sum(sizes.values()):
                raise InputError(
                    f"{self.root}: {table}: holds {characters:,} characters: no export wrote so"
                    " many"
                )
            return self._asked(question, files, _all_rows)[1]
        # Not a question of the user's.
        except UsageError as error:
            raise InputError(f"{self.root}: {table}: {str(error)[7:]}") from None

    def _of_ranks(
        self, rows: Sequence[tuple[Any, ...]], read: Callable[..., _Read], noun: str
    ) -> dict[int, _Read]:
        """What the rows say, by rank; a row that says nothing costs its rank.

        Raises:
            InputError: no row says anything.
        """
        by_rank: dict[int, _Read] = {}
        reasons: list[str] = []
        for rank, *cells in rows:
            try:
                by_rank[_rank(rank)] = read(*cells)
            except ValueError as error:
                reasons.append(f"the {noun} of rank {rank} cannot be read: {error}")
        if reasons and not by_rank:
            raise InputError(f"{self.root}: {reasons[0]}")
        self._unread += reasons[:_MOST_NOTES]
        return by_rank


def _all_rows(names: list[str], rows: Iterable[_Row]) -> tuple[list[str], list[_Row]]:
    return names, list(rows)


def _executed(
    connection: DuckDBPyConnection,
    question: str,
    read: Callable[[list[str], Iterable[_Row]], _Read],
) -> _Read:
    refuse_writing(connection, question)
    answer = connection.execute(question)
    return read([column[0] for column in answer.description or ()], _rows_of(answer))


def _rows_of(answer: DuckDBPyConnection) -> Iterator[_Row]:
    """The rows of an answer, fetched a few at a time."""
    while rows := answer.fetchmany(_ROWS_AT_ONCE):
        yield from rows


def _rank(value: object) -> int:
    """A rank's number, of a row that anybody may have written.

    Raises:
        ValueError: it is none.
    """
    rank = as_number(value, MOST_RANKS)
    if rank is None:
        raise ValueError(f"{str(value)[:40]} is no rank")
    return rank


def _error(*cells: object) -> RankError:
    """The error file in a row of the table.

    Raises:
        ValueError: a cell is of another type.
    """
    source, message, time_us, file, line, function, follows = cells
    texts = [as_text(text) for text in (source, message)]
    if None in texts:
        raise ValueError("a row is not what an export writes: export the run anew")
    seconds = None if time_us is None else as_number(int(str(time_us)) // 1_000_000)
    name, number = as_text(file), as_number(line)
    has_frame = bool(name) and number is not None
    return RankError(
        source=texts[0] or "",
        message=texts[1] or "",
        time_s=seconds,
        frames=(Frame(name or "", number or 0, as_text(function) or ""),) if has_frame else (),
        follows=follows is True,
    )


def flight_from_json(text: object) -> FlightRecord:
    """The flight record of a row.

    Raises:
        ValueError: it is not such a text.
    """
    return from_json(FlightRecord, text)


def is_lake(path: str | os.PathLike[str]) -> bool:
    """True if a folder, or a URL, is a lake.

    Raises:
        UsageError: fsspec, which a URL needs, is not installed.
        InputError: the place cannot be reached.
    """
    with told(os.fspath(path)):
        return holds_lake(store_of(path))
