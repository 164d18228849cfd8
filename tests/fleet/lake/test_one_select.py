"""What a question to a lake may do: one SELECT over its tables, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lake_jobs import write_job
from vramlens.cli.main import main
from vramlens.errors import UsageError
from vramlens.fleet import Lake, export_lake

pytest.importorskip("duckdb")

OTHER_STATEMENTS = {
    "copy": "COPY (SELECT 1) TO '{file}'",
    "copy elsewhere": "COPY (SELECT 1) TO '{folder}/new.csv'",
    "create": "CREATE TABLE x (a INT)",
    "create a view": "CREATE VIEW x AS SELECT 1",
    "install": "INSTALL httpfs",
    "load": "LOAD httpfs",
    "attach": "ATTACH '{folder}/new.db'",
    "set": "SET threads = 1",
    "reset": "RESET lock_configuration",
    "two": "SELECT 1; SELECT 2",
    "a second that writes": "SELECT count(*) FROM ranks; COPY (SELECT 1) TO '{file}'",
    "call": "CALL pragma_version()",
    "import": "IMPORT DATABASE '{folder}'",
    "export": "EXPORT DATABASE '{folder}/new'",
    "drop": "DROP VIEW ranks",
    "explain": "EXPLAIN ANALYZE SELECT 1",
}
WRITES = {
    "copy within with": "WITH x AS (COPY (SELECT 5 AS a) TO '{file}' (FORMAT csv, USE_TMP_FILE false))"
    " SELECT * FROM x",
    "copy beside a table": "WITH x AS (COPY (SELECT 5 AS a) TO '{file}' (FORMAT csv, USE_TMP_FILE false))"
    " SELECT rank FROM ranks",
    "copy from a text": "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('WITH x AS (CO' ||"
    " 'PY (SELECT 5 AS a) TO ''{file}'' (FORMAT csv, USE_TMP_FILE false)) SELECT * FROM x'))",
    "copy from a query": "FROM query('WITH x AS (COPY (SELECT 5) TO ''{file}'' (USE_TMP_FILE false)) FROM x')",
    "copy and a file that is damaged": "WITH x AS (COPY (SELECT 5) TO '{file}' (USE_TMP_FILE false))"
    " SELECT DISTINCT COLUMNS(*) FROM ranks, lines",
}
READS = {
    "a text": "SELECT * FROM read_text('{secret}')",
    "a table": "SELECT * FROM read_csv('{secret}')",
    "by its name": "SELECT * FROM '{secret}'",
    "bytes": "SELECT * FROM read_blob('{secret}')",
    "names": "SELECT * FROM glob('{folder}/*')",
    "through the lake": "SELECT count(*) FROM ranks, read_text('{folder}/lake/../secret.csv')",
    "from a query": "FROM query('FROM read_text(''{secret}'')')",
    "an address": "SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')",
    "a bucket": "SELECT * FROM read_csv('s3://bucket/x.csv')",
    "a variable": "SELECT * FROM connection",
}


@pytest.fixture(scope="module")
def real_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lakes") / "lake"
    export_lake([write_job(root.parent / "job", 2)], str(root), "r1")
    return root


@pytest.fixture
def lake(real_lake: Path, tmp_path: Path) -> Path:
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    return Path(shutil.copytree(real_lake, tmp_path / "lake"))


@pytest.fixture
def memory(lake: Path) -> Iterator[str]:
    """The lake in a store that fsspec reaches."""
    files = pytest.importorskip("fsspec").filesystem("memory")
    files.put(str(lake), "/bucket/lake", recursive=True)
    yield "memory://bucket/lake"
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def filled(question: str, lake: Path) -> str:
    file = next((lake / "ranks").rglob("*.parquet"))
    return question.format(file=file, folder=lake.parent, secret=lake.parent / "secret.csv")


@pytest.mark.parametrize("name", [*OTHER_STATEMENTS, *WRITES, *READS])
def test_everything_else_is_refused_in_one_line(
    lake: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lake.parent)
    before = contents(lake.parent)
    question = filled({**OTHER_STATEMENTS, **WRITES, **READS}[name], lake)
    assert main(["ranks", str(lake), "--sql", question]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("vramlens: --sql: ")
    assert contents(lake.parent) == before


@pytest.mark.parametrize("name", WRITES)
def test_a_damaged_file_lets_no_write_through(lake: Path, name: str) -> None:
    damaged = next((lake / "lines").rglob("*.parquet"))
    data = bytearray(damaged.read_bytes())
    data[4:120] = bytes(116)
    damaged.write_bytes(bytes(data))
    before = contents(lake)
    with pytest.raises(UsageError, match="--sql"):
        Lake(lake).sql(filled(WRITES[name], lake))
    assert contents(lake) == before


@pytest.mark.parametrize("question", ["", "  ", "-- all of it", "/* all */ ;", ";"])
def test_an_empty_query(lake: Path, question: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranks", str(lake), "--sql", question]) == 2
    assert capsys.readouterr().err.startswith("vramlens: --sql: the query is empty (tables: runs,")


@pytest.mark.parametrize(
    "question",
    [
        "SELECT count(*) FROM ranks;",
        "-- how many\nSELECT count(*) FROM ranks -- ranks",
        "WITH x AS (SELECT * FROM ranks) SELECT count(*) FROM x",
        "(SELECT count(*) FROM ranks) INTERSECT (VALUES (2))",
        "SELECT count(*) FROM (SUMMARIZE ranks) WHERE column_name IN ('rank', 'host')",
    ],
)
def test_a_select_is_answered(lake: Path, memory: str, question: str) -> None:
    assert Lake(lake).sql(question)[1] == [(2,)]
    assert Lake(memory).sql(question)[1] == [(2,)]


@pytest.mark.parametrize("path", ["memory://bucket/secret.csv", "memory:///bucket/secret.csv"])
def test_a_store_is_read_no_further_than_the_lake(memory: str, path: str) -> None:
    files = pytest.importorskip("fsspec").filesystem("memory")
    files.pipe("/bucket/secret.csv", b"a,b\n1,2\n")
    part = next(path for path in files.find("/bucket/lake/ranks") if path.endswith(".parquet"))
    before = files.cat(part)
    with pytest.raises(UsageError, match="--sql"):
        Lake(memory).sql(f"SELECT * FROM read_csv('{path}'), ranks")
    for question in WRITES.values():
        with pytest.raises(UsageError, match="--sql"):
            Lake(memory).sql(question.format(file=f"memory:/{part}"))
    assert files.cat(part) == before
