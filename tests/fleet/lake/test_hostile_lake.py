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
from vramlens.cli.main import main
from vramlens.errors import InputError
from vramlens.fleet import Lake, compare_files, export_lake

duckdb = pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def real_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lake")
    export_lake([DATA / "ranks/leak_rank1"], str(root), "r1")
    shutil.rmtree(root / "events")
    return root


@pytest.fixture
def lake(real_lake: Path, tmp_path: Path) -> Path:
    shutil.copytree(real_lake, tmp_path / "lake")
    return tmp_path / "lake"


def file_of(lake: Path, table: str) -> Path:
    return next((lake / table).rglob("*.parquet"))


def change(lake: Path, table: str, column: str, value: str) -> None:
    """Rewrites a table with another value (an SQL expression) in a column of rank 1."""
    path = file_of(lake, table)
    copy = path.with_suffix(".new")
    duckdb.sql(
        f"COPY (SELECT * REPLACE (CASE WHEN rank = 1 THEN {value} ELSE {column} END AS {column})"
        f" FROM read_parquet('{path}', hive_partitioning = false))"
        f" TO '{copy}' (FORMAT parquet, COMPRESSION zstd)"
    )
    copy.replace(path)


def change_summary(lake: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = file_of(lake, "summaries")
    rows = duckdb.sql(f"SELECT summary FROM '{path}' WHERE rank = 1").fetchall()
    summary = json.loads(rows[0][0])
    edit(summary)
    change(lake, "summaries", "summary", "'" + json.dumps(summary).replace("'", "''") + "'")


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "rank": lambda summary: summary.update(rank=2**32 - 1),
    "world size": lambda summary: summary.update(world_size=2**40),
    "text for a number": lambda summary: summary.update(peak_requested_bytes="much"),
    "truth for a number": lambda summary: summary.update(device=True),
    "another thing": lambda summary: (summary.clear(), summary.update(a=1)),
    "group without end": lambda summary: summary.update(groups=[["g", [[0, 2**50, 1]]]]),
    "place": lambda summary: summary["lines"][0].update(place=[1, 2, 3]),
    "span of two": lambda summary: summary.update(groups=[["g", [[0, 2]]]]),
    "number beyond all": lambda summary: summary.update(before_bytes=10**40),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_summary_of_another_form_costs_its_rank(lake: Path, edit: str) -> None:
    change_summary(lake, EDITS[edit])
    comparison = compare_files([lake])
    assert [rank.rank for rank in comparison.ranks] == [0]
    assert any("the summary of rank 1 cannot be read" in note for note in comparison.notes)
    assert all("\n" not in note for note in comparison.notes)


def test_a_field_that_is_missing_or_unknown_costs_itself(lake: Path) -> None:
    truth = compare_files([lake])

    def edit(summary: dict[str, Any]) -> None:
        del summary["groups"], summary["lines"][0]["per_step"]
        summary["of_tomorrow"] = summary["lines"][0]["of_tomorrow"] = [1]

    change_summary(lake, edit)
    comparison = compare_files([lake])
    assert [rank.rank for rank in comparison.ranks] == [0, 1]
    assert comparison.differences[0].cause == truth.differences[0].cause


def test_where_no_summary_can_be_read_the_lake_is_refused(lake: Path) -> None:
    path = file_of(lake, "summaries")
    copy = path.with_suffix(".new")
    duckdb.sql(
        f"COPY (SELECT attempt, rank, 'x' AS summary FROM '{path}') TO '{copy}' (FORMAT parquet)"
    )
    copy.replace(path)
    with pytest.raises(InputError, match="the summary of rank 0 cannot be read"):
        compare_files([lake])


@pytest.mark.parametrize(
    "text", ["''", "'[]'", "'1e999'", "'{\"version\": 5}'", "repeat('[', 100000)"]
)
def test_a_flight_record_of_another_form_costs_its_rank(lake: Path, text: str) -> None:
    change(lake, "flights", "record", text)
    flights = Lake(lake)
    assert list(flights.flights()) == [0]
    assert "the flight record of rank 1 cannot be read" in flights.notes[0]


@pytest.mark.parametrize("rank", ["4294967295", "-1", "NULL", "300000"])
def test_a_rank_that_no_job_has_costs_itself(lake: Path, rank: str) -> None:
    for table in ("flights", "summaries", "ranks"):
        path = file_of(lake, table)
        copy = path.with_suffix(".new")
        duckdb.sql(
            f"COPY (SELECT * REPLACE (CASE WHEN rank = 1 THEN {rank} ELSE rank END AS rank)"
            f" FROM read_parquet('{path}', hive_partitioning = false)) TO '{copy}'"
            " (FORMAT parquet)"
        )
        copy.replace(path)
    comparison = compare_files([lake])
    assert [summary.rank for summary in comparison.ranks] == [0]
    assert len(comparison.missing) < 10
    assert any("is no rank" in note for note in comparison.notes)


def test_texts_out_of_proportion_are_refused(lake: Path) -> None:
    change(lake, "summaries", "summary", "repeat(' ', 60000000)")
    with pytest.raises(InputError, match="no export wrote so many"):
        compare_files([lake])


@pytest.mark.parametrize("table", ["lines", "ranks", "flights", "runs", "findings"])
@pytest.mark.parametrize("bytes_left", [0, 30, -20])
def test_a_truncated_file_costs_its_ranks_and_is_named(
    lake: Path, table: str, bytes_left: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(lake, table)
    path.write_bytes(path.read_bytes()[:bytes_left])
    assert main(["ranks", str(lake), "--sql", f"SELECT count(*) FROM {table}"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1] == "0"
    assert f"damaged and left out: {table}/run=r1/" in captured.err
    assert captured.err.count("\n") == 1
    assert len(compare_files([lake]).ranks) == 2


def test_a_page_that_is_damaged_costs_its_file(lake: Path) -> None:
    path = file_of(lake, "lines")
    data = bytearray(path.read_bytes())
    for index in range(4, 120):
        data[index] ^= 0x5A
    path.write_bytes(bytes(data))
    damaged = Lake(lake)
    assert damaged.sql("SELECT count(*) FROM (SELECT DISTINCT COLUMNS(*) FROM lines)")[1] == [(0,)]
    assert "lines/run=r1/" in damaged.notes[0]


def test_columns_that_are_missing_or_unknown_cost_themselves(lake: Path) -> None:
    path = file_of(lake, "ranks")
    copy = path.with_suffix(".new")
    duckdb.sql(
        f"COPY (SELECT * EXCLUDE (host, steps), 5 AS of_tomorrow, 'x' AS host FROM '{path}')"
        f" TO '{copy}' (FORMAT parquet)"
    )
    copy.replace(path)
    names, rows = Lake(lake).sql("SELECT * FROM ranks ORDER BY rank")
    assert "of_tomorrow" not in names
    assert [(row[names.index("host")], row[names.index("steps")]) for row in rows] == [
        ("x", None)
    ] * 2


def test_cells_draw_nothing_and_forge_no_rows(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(
        lake, "lines", "file", "chr(27) || '[2J' || chr(10) || 'rank' || chr(9) || '7' || chr(13)"
    )
    assert main(["ranks", str(lake), "--sql", "SELECT rank, file FROM lines"]) == 0
    text = capsys.readouterr().out
    _, rows = Lake(lake).sql("SELECT rank, file FROM lines")
    assert len(text.splitlines()) == 1 + len(rows)
    assert all(line.count("\t") == 1 for line in text.splitlines())
    assert "\x1b" not in text
    assert "\r" not in text


def test_a_folder_may_be_called_as_a_pattern(lake: Path, tmp_path: Path) -> None:
    moved = tmp_path / "run[1]*?"
    lake.rename(moved)
    assert len(compare_files([moved]).ranks) == 2
