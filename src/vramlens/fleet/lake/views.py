"""Views over a lake's files: the tables as documented, whatever version or kind of program wrote
the files.

A column that a file lacks is NULL there, a cell of another type too, and a file that cannot be read
costs its own ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from vramlens.fleet.lake.lake_layout import LakeFile, LakeFiles
from vramlens.fleet.lake.lake_tables import TABLES, LakeTable
from vramlens.fleet.lake.parquet_files import file_list, identifier, literal
from vramlens.fleet.lake.store import LakeStore
from vramlens.units import first_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MOST_NAMED = 3
# Version 1 had -1, 0 and "" for what is not known, and times as numbers.
_OLD_CELLS: Mapping[str, Mapping[str, str]] = {
    "ranks": {
        "host": "NULLIF(host, '')",
        "nccl_bytes": "NULLIF(nccl_bytes, -1)",
        "other_processes_bytes": "NULLIF(other_processes_bytes, -1)",
        "died": "failed_us > 0",
    },
    "failures": {
        "kind": "'error_file'",
        "failed_at": "make_timestamp(NULLIF(time_s, -1) * 1000000)",
        "file": "NULLIF(file, '')",
        "line": "NULLIF(line, 0)",
        "function": "NULLIF(function, '')",
        "died": "true",
    },
    "events": {"happened_at": "make_timestamp(time_us)"},
    "collectives": {
        "created_at": "make_timestamp(NULLIF(created_ns, 0) // 1000)",
        "file": "NULLIF(file, '')",
        "line": "NULLIF(line, 0)",
    },
}
_OLD_ROWS = {"flights": "record IS NOT NULL", "collectives": "seq >= 0"}


class Views:
    """The views of a lake's tables in a connection to DuckDB.

    Args:
        connection: where they are made.
        store, files: the lake.
        left_out: paths of files that are known to be damaged.
    """

    def __init__(
        self,
        connection: DuckDBPyConnection,
        store: LakeStore,
        files: LakeFiles,
        left_out: frozenset[str] = frozenset(),
    ) -> None:
        self._connection, self._store, self._files = connection, store, files
        self._damaged: set[str] = set(left_out)

    @property
    def damaged(self) -> frozenset[str]:
        """The files that cannot be read."""
        return frozenset(self._damaged)

    def make_all(self, names: Iterable[str]) -> None:
        """Makes the views of some tables."""
        for name in names:
            self.make(name)

    def make(self, name: str) -> None:
        """Makes the view of a table; an empty one where there are no files."""
        table = TABLES[name]
        files = [file for file in self._files.of(name) if file.path not in self._damaged]
        parts = [
            self._select(table, [file for file in files if file.is_old], is_old=True),
            self._committed(table),
            self._select(table, list(self._files.staged.get(name, ()))),
        ]
        selects = [part for part in parts if part] or [_nothing(table)]
        self._connection.execute(
            f"CREATE OR REPLACE VIEW {identifier(name)} AS {' UNION ALL '.join(selects)}"
        )

    def _committed(self, table: LakeTable) -> str:
        """The committed rows, but for ranks that have newer ones in the staging area."""
        files = [file for file in self._files.by_table.get(table.name, ()) if not file.is_old]
        question = self._select(table, files)
        staged = self._files.staged.get("summaries", ()) or self._files.staged.get(table.name, ())
        if not question or not staged or not table.has_ranks:
            return question
        newer = ", ".join(f"({literal(file.run)}, {file.attempt}, {file.rank})" for file in staged)
        return (
            f"SELECT * FROM ({question}) WHERE rank IS NULL"
            f" OR (run, attempt, rank) NOT IN (VALUES {newer})"
        )

    def _select(self, table: LakeTable, files: Sequence[LakeFile], *, is_old: bool = False) -> str:
        """The question that gives the rows of files as the table's columns; empty for none."""
        present, columns = self._readable(files)
        if not present:
            return ""
        cells = ["CAST(run AS VARCHAR) AS run"]
        old_cells = {**_OLD_CELLS.get(table.name, {}), "attempt": "0"} if is_old else {}
        for column in table.columns:
            name = identifier(column.name)
            content = name if column.name in columns else "NULL"
            cell = old_cells.get(column.name, content)
            cells.append(f"TRY_CAST({cell} AS {column.sql_type}) AS {name}")
        question = f"SELECT {', '.join(cells)} FROM {self._source(present)}"
        if is_old and table.name in _OLD_ROWS:
            question += f" WHERE {_OLD_ROWS[table.name]}"
        return question

    def _readable(self, files: Sequence[LakeFile]) -> tuple[list[LakeFile], set[str]]:
        """The files that are not damaged, and their columns."""
        present = [file for file in files if file.path not in self._damaged]
        if not present:
            return [], set()
        try:
            return present, self._columns(present)
        except Exception:  # DuckDB's, of many kinds: a file that is not Parquet, or has gone
            present = self._whole_ones(present)
            return present, self._columns(present) if present else set()

    def _columns(self, files: Sequence[LakeFile]) -> set[str]:
        described = self._connection.execute(f"DESCRIBE SELECT * FROM {self._source(files)}")
        return {row[0] for row in described.fetchall()}

    def _source(self, files: Sequence[LakeFile]) -> str:
        paths = [file.path for file in files]
        return (
            f"read_parquet({file_list(self._store, paths)}, union_by_name = true,"
            " hive_partitioning = true, hive_types = {'run': VARCHAR})"
        )

    def _whole_ones(self, files: Sequence[LakeFile]) -> list[LakeFile]:
        """The files that can be opened; the others are noted."""
        readable = []
        for file in files:
            try:
                self._columns([file])
                readable.append(file)
            except Exception:
                self._damaged.add(file.path)
        return readable

    def find_damage(self, names: Sequence[str]) -> bool:
        """True where files of some tables turn out damaged when they are read to the end."""
        count = len(self._damaged)
        for name in names:
            for file in self._files.of(name):
                if file.path in self._damaged:
                    continue
                try:
                    self._connection.execute(
                        f"SELECT bit_xor(hash(COLUMNS(*))) FROM {self._source([file])}"
                    ).fetchall()
                except Exception:
                    self._damaged.add(file.path)
        return len(self._damaged) > count


def _nothing(table: LakeTable) -> str:
    cells = ", ".join(
        f"CAST(NULL AS {column.sql_type}) AS {identifier(column.name)}" for column in table.columns
    )
    return f"SELECT CAST(NULL AS VARCHAR) AS run, {cells} WHERE false"


def damage_note(damaged: frozenset[str]) -> list[str]:
    """One sentence on files that cannot be read; none where all can."""
    if not damaged:
        return []
    names = first_of(sorted(damaged), _MOST_NAMED)
    return [f"damaged and left out: {names}; export these ranks again"]
