"""Answers of many rows: what they may take, that they come whole, and what is said where they do
not.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from support.lake_jobs import write_job
from vramlens import allowance as allowances
from vramlens.allowance import Allowance, allowance
from vramlens.cli.main import main
from vramlens.fleet import Lake, export_lake

duckdb = pytest.importorskip("duckdb")
ROWS = 700_000


@pytest.fixture(scope="module")
def long_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with so many events that their rows, as Python has them, take more than 200 MB."""
    root = tmp_path_factory.mktemp("lakes") / "lake"
    export_lake([write_job(root.parent / "job", 2)], str(root), "r1")
    events = next((root / "events").rglob("*.parquet"))
    copy = events.with_suffix(".new")
    duckdb.sql(
        "COPY (SELECT e.* REPLACE (CAST(range AS INTEGER) AS seq)"
        f" FROM range({ROWS}), (FROM read_parquet('{events}', hive_partitioning = false) LIMIT 1) e)"
        f" TO '{copy}' (FORMAT parquet, COMPRESSION zstd)"
    )
    copy.replace(events)
    return root


@pytest.mark.parametrize("form", ["text", "json"])
def test_every_event_of_a_lake_can_be_had(long_lake: Path, tmp_path: Path, form: str) -> None:
    answer = tmp_path / "answer"
    question = ["--sql", "SELECT * FROM events", "-o", str(answer)]
    assert main(["ranks", str(long_lake), *question, *(["--json"] if form == "json" else [])]) == 0
    with answer.open() as file:
        lines = sum(1 for _ in file)
    assert lines == ROWS + (1 if form == "text" else 6)


def test_a_terminal_counts_the_rows_that_it_does_not_show(
    long_lake: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["ranks", str(long_lake), "--sql", "SELECT seq FROM events"]) == 0
    assert f"{ROWS - 40:,} more rows" in capsys.readouterr().out


def test_a_lake_may_take_what_its_rows_unpack_to(long_lake: Path) -> None:
    size_bytes = sum(path.stat().st_size for path in (long_lake / "events").rglob("*.parquet"))
    with allowance() as allowed:
        Lake(long_lake).sql("SELECT count(*) FROM events")
    bounded_bytes = max(100 * size_bytes, 16 << 20)
    assert allowed.input_bytes == size_bytes + min(ROWS * 10 * 8, bounded_bytes)


def test_rows_out_of_proportion_raise_no_bound() -> None:
    allowed = Allowance()
    allowed.count_lake("lake", 1_000_000, 10**15)
    assert allowed.most_bytes == 200_000_000 + 6_000_000 + 4 * 100_000_000


def test_what_is_said_of_a_lake_is_true_of_it(
    long_lake: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allowances, "SECONDS", 1.0)
    monkeypatch.setattr(allowances, "SECONDS_A_MEGABYTE", 0.0)
    assert main(["ranks", str(long_lake), "--sql", "SELECT * FROM events"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "recording" not in captured.err
    assert "of a lake may take" in captured.err


def test_damage_on_the_way_begins_the_answer_anew(
    long_lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    shutil.copytree(long_lake, lake)
    events = next((lake / "events").rglob("*.parquet"))
    data = bytearray(events.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 400] = bytes(400)
    events.write_bytes(bytes(data))
    assert main(["ranks", str(lake), "--sql", "SELECT seq FROM events", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["rows"] == []
    assert "damaged and left out: events/run=r1/" in captured.err


def test_rows_come_one_by_one(long_lake: Path) -> None:
    def first(_names: list[str], rows: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
        return next(iter(rows))

    assert Lake(long_lake).read_sql("SELECT seq FROM events ORDER BY seq", first) == (0,)


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("'nan'::DOUBLE", None),
        ("'inf'::FLOAT", None),
        ("[1.5, '-inf'::DOUBLE]", [1.5, None]),
        ("{'a': DATE '2026-01-02'}", {"a": "2026-01-02"}),
        ("MAP {DATE '2026-01-02': 1}", {"2026-01-02": 1}),
        ("true", True),
        ("12.50::DECIMAL(6,2)", "12.50"),
        ("'##[error]'", "##[error]"),
    ],
)
def test_every_value_is_json(
    long_lake: Path, value: str, cell: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ranks", str(long_lake), "--sql", f"SELECT {value} AS x", "--json"]) == 0
    text = capsys.readouterr().out
    assert json.loads(text) == {"schema": "vramlens/1", "columns": ["x"], "rows": [[cell]]}
    assert "##" not in text
