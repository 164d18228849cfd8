"""The commit of an export: staged ranks become files of 64 ranks and more, and the run gets its
row.

Each file is written whole; a commit that was stopped is done again by the next export.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vramlens.errors import InputError
from vramlens.fleet.lake.lake_layout import LakeFile, files_of, part_path, staged_folder
from vramlens.fleet.lake.lake_rows import Columns, moment
from vramlens.fleet.lake.lake_tables import OF_A_RANK, SCHEMA_VERSION, TABLES, LakeTable
from vramlens.fleet.lake.parquet_files import (
    copy_whole,
    file_list,
    identifier,
    write_columns,
    writing_connection,
)
from vramlens.fleet.lake.store import LakeStore, store_of, told
from vramlens.fleet.workers import ExecutorLike, for_each


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file to be written by a commit.

    Attributes:
        table: whose it is.
        number: which part of the attempt.
        staged: the files that become it.
        ranks: the ranks whose rows are new; what the file has of others stays.
    """

    table: str
    number: int
    staged: tuple[str, ...]
    ranks: tuple[int, ...]


def commit_attempt(
    root: str,
    run: str,
    attempt: int,
    executor: ExecutorLike | None = None,
) -> None:
    """Puts an attempt's staged ranks in their files, and empties its staging area.

    Raises:
        InputError: a file cannot be written, or one that is there cannot be read.
    """
    store = store_of(root)
    with told(root):
        parts = dict(enumerate(_parts(store, run, attempt)))
        tasks = {index: (root, run, attempt, part) for index, part in parts.items()}
        _, failed = for_each(tasks, write_part, executor)
        if failed:
            raise InputError(f"{root}: not committed: {next(iter(failed.values()))}")
        store.remove(staged_folder(run, attempt))


def _parts(store: LakeStore, run: str, attempt: int) -> Iterator[CommittedFile]:
    staged = files_of(store, OF_A_RANK).of_run(run, attempt).staged
    new_ranks = sorted(
        {file.rank for files in staged.values() for file in files if file.rank is not None}
    )
    for name in OF_A_RANK:
        table = TABLES[name]
        buckets: dict[int, list[LakeFile]] = defaultdict(list)
        for file in staged.get(name, ()):
            buckets[(file.rank or 0) // table.ranks_a_file].append(file)
        ranks_of: dict[int, list[int]] = defaultdict(list)
        for rank in new_ranks:
            ranks_of[rank // table.ranks_a_file].append(rank)
        for number, ranks in ranks_of.items():
            paths = tuple(file.path for file in buckets.get(number, ()))
            yield CommittedFile(name, number, paths, tuple(ranks))


def write_part(root: str, run: str, attempt: int, part: CommittedFile) -> None:
    """Writes one file of a commit: the staged rows, and what the file has of other ranks.

    Raises:
        InputError: it cannot be written, or the one that is there cannot be read.
    """
    store, table = store_of(root), TABLES[part.table]
    path = part_path(table, run, attempt, part.number)
    with told(f"{root}/{path}"):
        connection = writing_connection()
        store.attach(connection)
        committed = path in store.sizes(f"{table.name}/run={run}")
        if not part.staged and not committed:
            return
        copy_whole(
            store, path, connection, _merged(store, table, path if committed else None, part)
        )


def _merged(store: LakeStore, table: LakeTable, committed: str | None, part: CommittedFile) -> str:
    """The question that gives a part's rows."""
    questions = []
    if committed is not None:
        committed_rows = _rows(store, table, [committed])
        if table.has_ranks:
            numbers = ", ".join(map(str, part.ranks))
            committed_rows = f"SELECT * FROM ({committed_rows}) WHERE rank NOT IN ({numbers})"
        questions.append(committed_rows)
    if part.staged:
        questions.append(_rows(store, table, part.staged))
    question = " UNION ALL BY NAME ".join(questions)
    if table.has_ranks:  # in the order of the ranks, as their files are listed
        return question
    columns = ", ".join(
        f"any_value({identifier(name)}) AS {identifier(name)}"
        for name in table.types
        if name not in table.key
    )
    keys = ", ".join(map(identifier, table.key))
    return f"SELECT {keys}, {columns} FROM ({question}) GROUP BY {keys} ORDER BY {keys}"


def _rows(store: LakeStore, table: LakeTable, paths: Sequence[str]) -> str:
    columns = ", ".join(map(identifier, table.types))
    return (
        f"SELECT {columns} FROM read_parquet({file_list(store, paths)}, union_by_name = true,"
        " hive_partitioning = false)"
    )


def write_of_attempt(
    store: LakeStore, table: str, run: str, attempt: int, columns: Columns
) -> None:
    """Writes a table that rests on all ranks of an attempt together; without rows it goes."""
    path = part_path(TABLES[table], run, attempt, 0)
    if columns:
        write_columns(store, path, TABLES[table], columns, attempt)
    else:
        store.remove(path)


def run_row(facts: Mapping[str, object]) -> dict[str, object]:
    """The row of ``runs`` for some facts about an attempt."""
    from vramlens import __version__

    return {
        "schema_version": SCHEMA_VERSION,
        "vramlens": __version__,
        "exported_at": moment(time.time_ns() // 1000),
        **facts,
    }
