"""Lakes that are not in a folder: through fsspec, in memory and on a server that speaks S3."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lake_jobs import write_job
from vramlens.cli.main import main
from vramlens.fleet import Lake, compare_files, export_lake, is_lake
from vramlens.report.ranks.json import comparison_to_json

pytest.importorskip("duckdb")


@pytest.fixture
def memory() -> Iterator[str]:
    fsspec = pytest.importorskip("fsspec")
    yield "memory://bucket/lake"
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


def check_lake(job: Path, root: str) -> None:
    """Exports a job there twice, and reads it back."""
    assert not is_lake(root)
    first = export_lake([job], root, "x")
    assert first.events > 10_000
    assert export_lake([job], root, "x").events == 0
    assert is_lake(root)
    assert comparison_to_json(compare_files([root])) == comparison_to_json(compare_files([job]))
    _, rows = Lake(root).sql("SELECT run, count(*) FROM ranks GROUP BY 1")
    assert rows == [("x", 2)]


def test_a_lake_in_memory(tmp_path: Path, memory: str) -> None:
    check_lake(write_job(tmp_path / "job", 2), memory)


def test_a_lake_in_memory_on_the_command_line(
    tmp_path: Path,
    memory: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    job = write_job(tmp_path / "job", 2)
    assert main(["export", str(job), "--to", memory]) == 0
    assert f"  vramlens ranks {memory}" in capsys.readouterr().out
    assert main(["ranks", memory, "--ask", "worst-lines"]) == 0
    assert os.listdir(tmp_path) == ["job"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_lake_on_a_server_that_speaks_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server_of = pytest.importorskip("moto.server").ThreadedMotoServer
    s3fs = pytest.importorskip("s3fs")
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    server = server_of(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        address = "http://{}:{}".format(*server.get_host_and_port())
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("bucket")
        check_lake(write_job(tmp_path / "job", 2), "s3://bucket/a/lake")
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()


@pytest.mark.parametrize("url", ["s3://bucket/lake", "gs://bucket/lake/", "abfs://b/lake"])
def test_without_fsspec_it_is_refused_in_one_line(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("fsspec", "fsspec.core"):
        monkeypatch.setitem(sys.modules, name, None)
    job = write_job(tmp_path / "job", 2)
    assert main(["export", str(job), "--to", url]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "pip install fsspec" in captured.err
    assert os.listdir(tmp_path) == ["job"]


@pytest.mark.parametrize(
    "words",
    [
        ["export", "job", "--to", "nosuch://bucket/lake"],
        ["export", "job/rank00000.vram", "--to", "tensorboard", "-o", "s3://bucket/x"],
        ["run", "-o", "s3://bucket/x", "train.py"],
        ["ranks", "nosuch://bucket/lake"],
    ],
)
def test_no_local_folder_is_called_after_a_url(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_job(tmp_path / "job", 2)
    (tmp_path / "train.py").write_text("")
    assert main(words) in (2, 3)
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["job", "train.py"]
