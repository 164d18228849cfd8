"""``vramlens export`` as a person meets it: files named after the source, told in a line,
written whole or not at all.
"""

from __future__ import annotations

import builtins
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.recordings import DATA, data_of
from vramlens.cli.main import main
from vramlens.cli.verbs.reading.export import _NAMES, _run_of
from vramlens.export import FORMATS

RECORDING = "recordings/streams"
STEPPED = "recordings/graphs"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording with steps in an empty folder, which is the current one."""
    path = tmp_path / "recorded" / "run.pickle"
    path.parent.mkdir()
    path.write_bytes(data_of(STEPPED))
    monkeypatch.chdir(tmp_path)
    return path


def test_the_names_are_the_formats() -> None:
    assert tuple(FORMATS) == _NAMES


@pytest.mark.parametrize(
    "name", [name for name in _NAMES if name not in ("parquet", "tensorboard")]
)
def test_a_file_is_named_after_the_source(
    name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--to", name]) == 0
    told = capsys.readouterr()
    assert told.out == ""
    written = f"run{FORMATS[name].ending}"
    first, *_, last = told.err.splitlines()
    assert first.startswith(f"vramlens: {written}: ")
    assert last.startswith("vramlens: next: ")
    assert written in last
    assert sorted(os.listdir()) == sorted(["recorded", written])
    assert Path(written).stat().st_size


def test_parquet_is_written(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb")
    assert main(["export", str(run), "--to", "parquet", "-o", "it's.parquet"]) == 0
    assert Path("it's.parquet").read_bytes()[:4] == b"PAR1"
    assert "135 allocations of GPU 0, one per row" in capsys.readouterr().err


def test_tensorboard_is_a_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard.compat.proto.event_pb2")
    assert main(["export", str(run), "--to", "tensorboard"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "vramlens: run.tensorboard: 10 scalars of 3 steps",
        "vramlens: next: tensorboard --logdir run.tensorboard",
    ]
    assert len(os.listdir("run.tensorboard")) == 1
    assert main(["export", str(run), "--to", "tensorboard", "-o", "-"]) == 2
    assert "choose a folder" in capsys.readouterr().err


def test_standard_output_is_the_data_alone(
    run: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["export", str(run), "--to", "flamegraph", "-o", "-", "--at", "end"]) == 0
    told = capsysbinary.readouterr()
    assert told.err == b""
    assert all(line.rpartition(b" ")[2].isdigit() for line in told.out.splitlines())


def test_the_source_is_never_overwritten(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.link(run, "linked.csv")
    before = run.read_bytes()
    for target in (str(run), "linked.csv"):
        assert main(["export", str(run), "--to", "csv", "-o", target]) == 2
        assert "is the input file" in capsys.readouterr().err
    assert run.read_bytes() == before


def test_a_failure_leaves_what_was_there(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.folded").write_text("before")
    assert main(["export", str(run), "--to", "flamegraph", "--at", "999999"]) == 2
    assert Path("run.folded").read_text() == "before"
    assert main(["export", str(run), "--to", "csv", "-o", "nowhere/run.csv"]) == 3
    assert main(["export", str(run), "--to", "csv", "-o", "recorded"]) == 3
    first, second, third = capsys.readouterr().err.splitlines()
    assert "--at takes peak, oom, end or an event" in first
    assert second == "vramlens: nowhere/run.csv: no such file or directory; nothing was written"
    assert (
        third == "vramlens: recorded: is a directory; choose a file name in it; nothing was written"
    )
    assert sorted(os.listdir()) == ["recorded", "run.folded"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--to", "svg"], "is not a format (perfetto, chrome, "),
        (["--to", "csv", "--at", "peak"], "--at is for flamegraph and speedscope"),
        (["--to", "csv", "--run", "a"], "--run is for a lake"),
        (["--to", "csv", "--workers", "2"], "--workers is for a lake"),
        (["--to", "lake/", "-o", "x"], "-o does not apply to a lake"),
        (["--to", "lake/", "--device", "0"], "--device does not apply to a lake"),
        (["--to", "lake/", "--run", "../x"], "--run ../x: letters, digits"),
        (["--to", "lake/", "--run", "a b"], "--run a b: letters, digits"),
        (["--to", "csv", "--device", "3"], "no device 3"),
        ([], "--to"),
    ],
)
def test_wrong_usage_is_told_in_a_line(
    arguments: list[str], told: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert os.listdir() == ["recorded"]


def test_a_folder_is_no_recording(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "recorded", "--to", "csv"]) == 2
    assert main(["export", str(run), str(run), "--to", "csv"]) == 2
    assert all("--to lake/" in line for line in capsys.readouterr().err.splitlines())


def test_what_is_not_installed_is_named(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    importing = builtins.__import__

    def refuse(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "duckdb":
            raise ImportError(name)
        return importing(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert main(["export", str(run), "--to", "parquet"]) == 2
    assert main(["export", "recorded", "--to", "lake/"]) == 2
    parquet, lake = capsys.readouterr().err.splitlines()
    assert "vramlens[fleet]" in parquet
    assert "vramlens[fleet]" in lake
    assert os.listdir() == ["recorded"]


def test_a_job_becomes_a_lake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DATA / "ranks/leak_rank1", "runs/r1")
    for rank in (0, 1):  # of rank 0 nothing but what names it is left out: 1 and 2 are there
        for ending in ("pickle.xz", "nccl.pickle.xz"):
            name = f"leak_rank1.rank{rank}.{ending}"
            os.rename(
                f"runs/r1/{name}", f"runs/r1/{name.replace(f'rank{rank}.', f'rank{rank + 1}.')}.new"
            )
    for path in Path("runs/r1").glob("*.new"):
        path.rename(path.with_suffix(""))
    assert main(["export", "runs/r1/", "--to", "lake/", "--workers", "1"]) == 0
    first, second, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("lake/: run r1, 2 ranks; ")
    assert first.endswith(" new events written")
    assert second == "missing: rank 0"
    assert last == "  vramlens ranks lake/"
    assert (
        main(["export", "runs/r1", "--to", "lake", "--workers", "1"]) == 0
    )  # a folder that is there needs no slash
    assert "no new events; the existing data was kept" in capsys.readouterr().out
    assert main(["export", "runs/r1", "--to", "lake/", "--run", "again", "--workers", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "  vramlens ranks lake/ --run again"
    assert main(["ranks", "lake/", "--run", "again", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"]


def test_nothing_to_put_into_a_lake(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb")
    Path("empty").mkdir()
    assert main(["export", "empty", "--to", "lake/"]) == 3
    assert main(["export", "recorded", "--to", str(run)]) == 2
    nothing, file = capsys.readouterr().err.splitlines()
    assert "contains no recording" in nothing
    assert "is a file; a lake is a folder" in file


@pytest.mark.parametrize(
    ("source", "run_id"),
    [
        ("runs/r1", "r1"),
        ("runs/r1/", "r1"),
        ("job 7 (new)", "job-7-new"),
        ("x/rank0.pickle.xz", "rank0"),
        ("/", "run"),
    ],
)
def test_a_run_is_called_after_its_source(source: str, run_id: str) -> None:
    assert _run_of(source) == run_id
