"""Lakes that anybody may have written: every cell of its type and within bounds, or one
InputError.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.recordings import DATA
from vramlens.errors import InputError
from vramlens.fleet import Lake, compare_files, export_lake

duckdb = pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def real_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lake")
    export_lake([DATA / "ranks/leak_rank1"], str(root), "r1")
    shutil.rmtree(root / "run=r1" / "events")
    return root


@pytest.fixture
def lake(real_lake: Path, tmp_path: Path) -> Path:
    shutil.copytree(real_lake / "run=r1", tmp_path / "lake" / "run=r1")
    return tmp_path / "lake"


def change(lake: Path, table: str, column: str, value: str) -> None:
    """Rewrites one rank's file of a table with another value (an SQL expression) in a column."""
    path = next((lake / "run=r1" / table).rglob("rank=00001.parquet"))
    copy = path.with_suffix(".new")
    duckdb.sql(
        f"COPY (SELECT * REPLACE ({value} AS {column}) FROM '{path}') TO '{copy}' (FORMAT parquet, COMPRESSION zstd)"
    )
    copy.replace(path)


def change_summary(lake: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = next((lake / "run=r1" / "ranks").rglob("rank=00001.parquet"))
    summary = json.loads(duckdb.sql(f"SELECT summary FROM '{path}'").fetchall()[0][0])
    edit(summary)
    change(lake, "ranks", "summary", "'" + json.dumps(summary).replace("'", "''") + "'")


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "rank": lambda summary: summary.update(rank=2**32 - 1),
    "world size": lambda summary: summary.update(world_size=2**40),
    "text for a number": lambda summary: summary.update(peak_requested_bytes="much"),
    "truth for a number": lambda summary: summary.update(device=True),
    "no field": lambda summary: summary.pop("groups"),
    "another field": lambda summary: summary.update(other=1),
    "group without end": lambda summary: summary.update(groups=[["g", [[0, 2**50, 1]]]]),
    "place": lambda summary: summary["lines"][0].update(place=[1, 2, 3]),
    "span of two": lambda summary: summary.update(groups=[["g", [[0, 2]]]]),
    "number beyond all": lambda summary: summary.update(before_bytes=10**40),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_summary_of_another_form_is_refused(lake: Path, edit: str) -> None:
    change_summary(lake, EDITS[edit])
    with pytest.raises(InputError) as raised:
        compare_files([lake])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["''", "'[]'", "'1e999'", "'{\"version\": 5}'", "repeat('[', 100000)"]
)
def test_a_flight_record_of_another_form_is_refused(lake: Path, text: str) -> None:
    change(lake, "collectives", "record", text)
    with pytest.raises(InputError):
        compare_files([lake])


@pytest.mark.parametrize("rank", ["4294967295", "-1", "'x'", "NULL"])
def test_a_rank_that_no_job_has_is_refused(lake: Path, rank: str) -> None:
    change(lake, "collectives", "rank", rank)
    with pytest.raises(InputError):
        Lake(lake).flights()


def test_texts_out_of_proportion_are_refused(lake: Path) -> None:
    change(lake, "ranks", "summary", "repeat(' ', 60000000)")
    with pytest.raises(InputError, match="more than any export writes"):
        compare_files([lake])


@pytest.mark.parametrize(
    "text", ["[1, 2]", '{"world_size": 1e400, "notes": 5}', "{" * 10, "[" * 100_000]
)
def test_facts_of_another_form_are_none(lake: Path, text: str) -> None:
    (lake / "run=r1" / "run.json").write_text(text)
    assert len(compare_files([lake]).ranks) == 2


def test_a_folder_may_be_called_as_a_pattern(lake: Path, tmp_path: Path) -> None:
    moved = tmp_path / "run[1]*?"
    lake.rename(moved)
    assert len(compare_files([moved]).ranks) == 2
