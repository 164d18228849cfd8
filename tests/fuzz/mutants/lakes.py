"""Mutants of lakes: a real one of two ranks, with cells or files changed."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

from mutants import seeds
from mutants.values import NUMBERS, as_json, damaged, mutated, nasty

_TABLES = ("summaries", "summaries", "summaries", "flights", "failures", "ranks", "runs")
_JSON = {"summary", "record"}


@cache
def _real_lake() -> Path:
    """A lake that vramlens wrote, of two ranks with flight records and an error file."""
    from vramlens.fleet.lake_export import export_lake

    job, root = Path(mkdtemp(prefix="vramlens-job-")), Path(mkdtemp(prefix="vramlens-lake-"))
    for rank, name in enumerate(("ddp-rank0", "ddp-rank1")):
        shutil.copy(seeds.DATA / "captured" / f"{name}.vram", job / f"rank{rank}.vram")
        (job / f"nccl_trace_rank_{rank}").write_bytes(json.dumps(seeds.flights()[rank]).encode())
        (job / "attempt_0" / str(rank)).mkdir(parents=True)
        (job / "attempt_0" / str(rank) / "error.json").write_text(json.dumps(seeds.ERROR))
    export_lake([job], str(root), "r1")
    shutil.rmtree(job)
    return root


def write_lake(folder: Path, random: Random) -> str:
    """A lake of which one file is not as vramlens writes it."""
    lake = folder / "lake"
    shutil.copytree(_real_lake(), lake, ignore=shutil.ignore_patterns("events", "stacks"))
    choice = random.random()
    files = sorted((lake / random.choice(_TABLES)).rglob("*.parquet"))
    if not files:
        return "lake"
    path = random.choice(files)
    if choice < 0.25:
        path.write_bytes(damaged(path.read_bytes(), random))
    else:
        _change_cells(path, random)
    return "lake"


def _change_cells(path: Path, random: Random) -> None:
    """Rewrites a Parquet file with one cell of another value, of the same type or as text."""
    import duckdb

    with duckdb.connect() as connection:
        relation = connection.execute("SELECT * FROM read_parquet(?)", [str(path)])
        columns = [(column[0], str(column[1])) for column in relation.description]
        rows = [list(row) for row in relation.fetchall()]
        if not rows:
            return
        at = random.randrange(len(columns))
        name, kind = columns[at]
        row = random.choice(rows)
        row[at] = _cell(name, row[at], random)
        if random.random() < 0.15:  # every cell of this column becomes a text
            kind = "VARCHAR"
            columns[at] = (name, kind)
        kinds = {"STRING": "VARCHAR", "NUMBER": "BIGINT"}
        made = ", ".join(f'"{name}" {kinds.get(kind, kind)}' for name, kind in columns)
        connection.execute(f"CREATE TABLE cells ({made})")
        places = ", ".join("?" * len(columns))
        try:
            connection.executemany(f"INSERT INTO cells VALUES ({places})", rows)
        except (duckdb.Error, UnicodeEncodeError):  # the column cannot hold it
            return
        path.unlink()
        connection.execute(f"COPY cells TO '{path}' (FORMAT parquet)")


def _cell(name: str, value: Any, random: Random) -> Any:
    if name in _JSON and isinstance(value, str):
        return as_json(mutated(json.loads(value), random)).decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return random.choice([number for number in NUMBERS if isinstance(number, int)])
    return nasty(random)
