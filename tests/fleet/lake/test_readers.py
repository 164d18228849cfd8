"""The tables of a lake as other programs read them, and the questions that the docs show."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path

import pytest

from support.lake_jobs import START_US, write_job
from vramlens.cli.main import main
from vramlens.fleet import Lake, export_lake
from vramlens.fleet.lake.lake_tables import TABLES
from vramlens.fleet.lake.ready_questions import QUESTIONS, sql_of

duckdb = pytest.importorskip("duckdb")
DOCS = Path(__file__).parents[3] / "docs" / "lake.md"
RANKS = 3


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    root = folder / "lake"
    for index in range(2):
        job = write_job(folder / f"job{index}", RANKS, start_us=START_US + index * 10**10)
        export_lake([job], str(root), f"job{index}")
    return root


@pytest.fixture(scope="module")
def peaks(lake: Path) -> dict[tuple[str, int], int]:
    """The truth: each rank's peak as its own summary has it."""
    return {
        (run, summary.rank): summary.peak_reserved_bytes
        for run in ("job0", "job1")
        for summary in Lake(lake, run).summaries()
    }


def test_duckdb_reads_the_files_themselves(lake: Path, peaks: dict[tuple[str, int], int]) -> None:
    rows = duckdb.sql(f"SELECT run, rank, peak_reserved_bytes FROM '{lake}/ranks/**/*.parquet'")
    assert {(run, rank): peak for run, rank, peak in rows.fetchall()} == peaks


def test_pandas_reads_the_folder_of_a_table(lake: Path, peaks: dict[tuple[str, int], int]) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.read_parquet(lake / "ranks")
    rows = zip(frame["run"], frame["rank"], frame["peak_reserved_bytes"], strict=True)
    assert {(run, rank): peak for run, rank, peak in rows} == peaks
    assert frame["nccl_bytes"].isna().all()
    assert str(frame["started_at"].min()).startswith("2023-11-14 22:13:20")
    for table in TABLES:
        if (lake / table).exists():
            assert "uint" not in str(pandas.read_parquet(lake / table).dtypes.to_dict())


def test_polars_reads_the_folder_of_a_table(lake: Path, peaks: dict[tuple[str, int], int]) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(lake / "ranks")
    assert {
        (row["run"], row["rank"]): row["peak_reserved_bytes"] for row in frame.iter_rows(named=True)
    } == peaks


@pytest.mark.spark
def test_spark_reads_the_folder_of_a_table(lake: Path, peaks: dict[tuple[str, int], int]) -> None:
    """Outside of CI: it needs Java."""
    sql = pytest.importorskip("pyspark.sql")
    session = sql.SparkSession.builder.master("local[1]").getOrCreate()
    try:
        rows = session.read.parquet(f"{lake}/ranks").collect()
        assert {(row.run, row["rank"]): row.peak_reserved_bytes for row in rows} == peaks
        for table in TABLES:
            if (lake / table).exists():
                session.read.parquet(f"{lake}/{table}").collect()
    finally:
        session.stop()


def test_the_lines_of_a_rank_sum_to_its_peak(lake: Path) -> None:
    _, rows = Lake(lake).sql(
        "SELECT r.peak_requested_bytes, sum(l.at_peak_bytes) FROM ranks r"
        " JOIN lines l USING (run, attempt, rank) GROUP BY run, attempt, rank, 1"
    )
    assert len(rows) == 2 * RANKS
    assert all(peak == at_peak for peak, at_peak in rows)


def test_every_file_says_its_schema(lake: Path) -> None:
    for file in lake.rglob("*.parquet"):
        rows = duckdb.sql(f"SELECT key, value FROM parquet_kv_metadata('{file}')").fetchall()
        assert (b"vramlens_schema", b"2") in rows, file


def test_ready_questions_give_true_numbers(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in QUESTIONS:
        assert main(["ranks", str(lake), "--ask", name]) == 0
        names, *rows = capsys.readouterr().out.splitlines()
        assert names.count("\t") > 1
        assert all(row.count("\t") == names.count("\t") for row in rows)
    columns, rows = Lake(lake).sql(sql_of("leaking-lines"))
    assert columns[:2] == ["file", "line"]
    assert rows[0][:4] == ("train/multi.py", 46, "after", 2)
    _, rows = Lake(lake).sql(sql_of("worst-lines"))
    best = max(
        sum(line.at_peak_bytes for line in summary.lines if line.place == place)
        for run in ("job0", "job1")
        for summary in Lake(lake, run).summaries()
        for place in {line.place for line in summary.lines if line.place}
    )
    assert rows[0][6] <= best
    assert rows[0][4:6] == (2, 2 * RANKS)


def test_failing_causes_count_jobs_not_rows(tmp_path: Path) -> None:
    for index, trigger in enumerate(("error", "error", "exit")):
        job = write_job(
            tmp_path / f"job{index}", 2, start_us=START_US + index * 10**10, trigger=trigger
        )
        export_lake([job], str(tmp_path / "lake"), f"job{index}")
    question = sql_of("failing-causes-this-month", datetime(2023, 11, 20, tzinfo=timezone.utc))
    assert Lake(tmp_path / "lake").sql(question)[1][0][:3] == ("error", 2, 4)
    later = sql_of("failing-causes-this-month", datetime(2023, 12, 1, tzinfo=timezone.utc))
    assert Lake(tmp_path / "lake").sql(later)[1] == []


def test_the_documented_sql_gives_true_numbers(
    lake: Path, peaks: dict[tuple[str, int], int]
) -> None:
    blocks = re.findall(r"```sql\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    answers = [Lake(lake).sql(block) for block in blocks]
    by_columns = {tuple(names): rows for names, rows in answers}
    rows = by_columns["run", "attempt", "ranks", "all_peaks_bytes", "lines_bytes"]
    for run, attempt, ranks, all_peaks_bytes, lines_bytes in rows:
        own = [peak for (name, _), peak in peaks.items() if name == run]
        summaries = Lake(lake, run).summaries()
        assert (attempt, ranks) == (0, RANKS)
        assert all_peaks_bytes == sum(own)
        assert lines_bytes == sum(
            line.at_peak_bytes for summary in summaries for line in summary.lines
        )


def test_the_docs_list_every_column() -> None:
    text = DOCS.read_text("utf-8")
    for table in TABLES.values():
        section = text.partition(f"\n### {table.name}\n")[2].partition("\n### ")[0]
        assert table.meaning in section, table.name
        for column in table.columns:
            assert f"| {column.name} | {column.sql_type} | {column.meaning} |" in section
    for question in QUESTIONS.values():
        assert f"| `{question.name}` | {question.meaning} |" in text
