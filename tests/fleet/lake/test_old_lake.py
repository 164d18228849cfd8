"""Lakes of version 1 are still read, and go on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from support.recordings import DATA
from vramlens.cli.main import main
from vramlens.fleet import Lake, compare_files, export_lake, is_lake
from vramlens.ranks.rank_difference import RankDifference

pytest.importorskip("duckdb")
OLD = DATA / "lakes/version1"


def test_an_old_lake_answers_as_its_recordings_do() -> None:
    assert is_lake(OLD)
    old, new = compare_files([OLD]), compare_files([DATA / "ranks/leak_rank1"])
    assert _without_words(old.differences) == _without_words(new.differences)
    assert old.flights.keys() == new.flights.keys()
    assert not any("did not finish" in note for note in old.notes)


def _without_words(differences: tuple[RankDifference, ...]) -> list[RankDifference]:
    """The differences but for their sentences, which a lake keeps as they were written."""
    return [replace(difference, title="", evidence=(), fix="") for difference in differences]


def test_an_old_lake_has_the_tables_of_today() -> None:
    lake = Lake(OLD)
    assert lake.sql("SELECT run, attempt, rank, host, nccl_bytes, died FROM ranks ORDER BY rank")[
        1
    ] == [("r1", 0, 0, None, None, False), ("r1", 0, 1, None, None, False)]
    _, rows = lake.sql("SELECT min(created_at), count(DISTINCT rank) FROM collectives")
    assert str(rows[0][0]).startswith("2026-")
    assert rows[0][1] == 2
    assert main(["ranks", str(OLD), "--ask", "worst-lines"]) == 0


def test_an_export_into_an_old_lake_writes_the_new_form_beside_it(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    shutil.copytree(OLD, root)
    exported = export_lake([DATA / "ranks/desync"], str(root), "r2")
    assert exported.run == "r2"
    assert Lake(root).runs == {"r1": [0], "r2": [0]}
    assert len(compare_files([root], run="r1").ranks) == 2


def test_a_broken_file_of_an_old_lake_costs_its_rank(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    shutil.copytree(OLD, root)
    path = next((root / "run=r1/ranks").rglob("rank=00000.parquet"))
    path.write_bytes(path.read_bytes()[:100])
    comparison = compare_files([root])
    assert [rank.rank for rank in comparison.ranks] == [1]
    assert any("rank=00000.parquet" in note for note in comparison.notes)
