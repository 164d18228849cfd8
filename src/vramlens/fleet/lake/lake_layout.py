"""Layout of a lake: which files are of which table, run and attempt.

    ROOT/TABLE/run=ID/part-A-BBBBB.parquet      attempt A, the B-th part of its ranks
    ROOT/_staging/run=ID/attempt=A/rank=R/TABLE.parquet
                                                a rank as its worker left it, until the commit

``part-A.parquet`` where one file holds an attempt. Engines leave out what begins with ``_``.
Lakes of version 1 (``ROOT/run=ID/TABLE/bucket=B/rank=R.parquet``) are still read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from vramlens.fleet.lake.lake_tables import TABLES, LakeTable
from vramlens.fleet.lake.store import LakeStore
from vramlens.read.values import MOST_RANKS

STAGING = "_staging"
_PART = re.compile(r"run=([^/]+)/part-(\d{1,9})(?:-\d+)?\.parquet$")
_STAGED = re.compile(r"run=([^/]+)/attempt=(\d{1,9})/rank=(\d{1,9})/(\w+)\.parquet$")
_OLD = re.compile(r"^run=([^/]+)/(\w+)/bucket=\d+/rank=(\d{1,9})\.parquet$")
_OLD_NAMES = {"errors": "failures"}


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of a lake.

    Attributes:
        path: relative to the root.
        size_bytes: of it.
        run, attempt: what it is of.
        rank: of a file that has one rank only; else None.
        is_old: whether it is of a lake of version 1.
    """

    path: str
    size_bytes: int
    run: str
    attempt: int
    rank: int | None = None
    is_old: bool = False


@dataclass(frozen=True, slots=True)
class LakeFiles:
    """The files of a lake, or of some of its tables.

    Attributes:
        by_table: the committed ones.
        staged: those of ranks whose export was not committed.
    """

    by_table: Mapping[str, Sequence[LakeFile]] = field(default_factory=dict)
    staged: Mapping[str, Sequence[LakeFile]] = field(default_factory=dict)

    def of(self, table: str) -> list[LakeFile]:
        """The files of a table, staged ones last."""
        return [*self.by_table.get(table, ()), *self.staged.get(table, ())]

    def of_run(self, run: str, attempt: int | None = None) -> LakeFiles:
        """The files of one run, or of one attempt of it."""

        def chosen(files: Mapping[str, Sequence[LakeFile]]) -> dict[str, list[LakeFile]]:
            return {
                table: [
                    file
                    for file in table_files
                    if file.run == run and (attempt is None or file.attempt == attempt)
                ]
                for table, table_files in files.items()
            }

        return LakeFiles(chosen(self.by_table), chosen(self.staged))

    @property
    def attempts(self) -> dict[str, list[int]]:
        """The attempts of each run, ascending, by the run's name."""
        attempts: dict[str, set[int]] = defaultdict(set)
        for files in (*self.by_table.values(), *self.staged.values()):
            for file in files:
                attempts[file.run].add(file.attempt)
        return {run: sorted(numbers) for run, numbers in sorted(attempts.items())}


def files_of(store: LakeStore, tables: Sequence[str] = tuple(TABLES)) -> LakeFiles:
    """The files of a lake's tables."""
    by_table: dict[str, list[LakeFile]] = defaultdict(list)
    for table in tables:
        for path, size in store.sizes(table).items():
            match = _PART.search(path)
            if match is not None:
                by_table[table].append(LakeFile(path, size, match[1], int(match[2])))
    for folder in store.folders(""):
        if folder.startswith("run="):
            _add_old(by_table, store, folder, tables)
    return LakeFiles(by_table, _staged(store, tables))


def _staged(store: LakeStore, tables: Sequence[str]) -> dict[str, list[LakeFile]]:
    staged: dict[str, list[LakeFile]] = defaultdict(list)
    for path, size in store.sizes(STAGING).items():
        match = _STAGED.search(path)
        if match is None or match[4] not in tables or int(match[3]) > MOST_RANKS:
            continue
        file = LakeFile(path, size, match[1], int(match[2]), rank=int(match[3]))
        staged[match[4]].append(file)
    return staged


def _add_old(
    by_table: dict[str, list[LakeFile]], store: LakeStore, folder: str, tables: Sequence[str]
) -> None:
    """Adds the files of a run in a lake of version 1; each holds one rank."""
    for path, size in store.sizes(folder).items():
        match = _OLD.search(path)
        if match is None:
            continue
        file = LakeFile(path, size, match[1], 0, rank=int(match[3]), is_old=True)
        for table in _new_names(match[2]):
            if table in tables:
                by_table[table].append(file)


def _new_names(old_table: str) -> tuple[str, ...]:
    """The tables that a table of version 1 has become."""
    if old_table == "ranks":
        return ("ranks", "summaries")
    if old_table == "collectives":
        return ("collectives", "flights")
    return (_OLD_NAMES.get(old_table, old_table),)


def part_path(table: LakeTable, run: str, attempt: int, part: int) -> str:
    """Where a part of a table lies."""
    number = "" if table.ranks_a_file > MOST_RANKS else f"-{part:05d}"
    return f"{table.name}/run={run}/part-{attempt}{number}.parquet"


def staged_folder(run: str, attempt: int) -> str:
    """Where the ranks of an attempt wait for its commit."""
    return f"{STAGING}/run={run}/attempt={attempt}"


def staged_path(table: str, run: str, attempt: int, rank: int) -> str:
    """Where a rank's rows wait for the commit."""
    return f"{staged_folder(run, attempt)}/rank={rank:05d}/{table}.parquet"


def is_lake(store: LakeStore) -> bool:
    """True if there is a lake: a run of some table, committed or staged."""
    folders = store.folders("")
    places = [name for name in ("runs", "ranks", "summaries", STAGING) if name in folders]
    return _has_a_run(folders) or any(_has_a_run(store.folders(place)) for place in places)


def _has_a_run(folders: Iterable[str]) -> bool:
    return any(folder.startswith("run=") for folder in folders)
