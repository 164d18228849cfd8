"""Where an answer goes: no verb writes it over what it was made from."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

from support.recordings import DATA
from support.vram_files import vram
from vramlens.cli.main import main

GRAPHS = DATA / "recordings/graphs.pickle.xz"
FAILED = DATA / "recordings/oom_fragmented.pickle.xz"
FLIGHTS = [DATA / f"ranks/desync/desync.rank{rank}.nccl.pickle.xz" for rank in (0, 1)]


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, where the test runs, with one input of every kind in it."""
    monkeypatch.chdir(tmp_path)
    for name in ("run.vram", "other.vram"):
        shutil.copy(GRAPHS, name)
    Path("job/inner").mkdir(parents=True)
    for rank, flight in enumerate(FLIGHTS):
        shutil.copy(flight, f"nccl_trace_rank_{rank}.xz")
        shutil.copy(flight, f"job/inner/rank{rank}.nccl.pickle.xz")
    shutil.copy(FAILED, "failed.vram")
    Path("error.log").write_text(
        json.loads(FAILED.with_suffix("").with_suffix(".json").read_text())["oom_message"]
    )
    Path("vram.toml").write_text('[budget]\npeak_allocated = "1 TiB"\n')
    return tmp_path


WRITING = [
    ("explain run.vram", "run.vram"),
    ("explain run.vram --json", "run.vram"),
    ("explain error.log", "error.log"),
    ("explain failed.vram --log error.log", "error.log"),
    ("explain nccl_trace_rank_0.xz", "nccl_trace_rank_0.xz"),
    ("explain nccl_trace_rank_0.xz nccl_trace_rank_1.xz", "nccl_trace_rank_1.xz"),
    ("explain nccl_trace_rank_0.xz nccl_trace_rank_1.xz --markdown", "nccl_trace_rank_0.xz"),
    ("leaks run.vram", "run.vram"),
    ("replay run.vram", "run.vram"),
    ("tune run.vram", "run.vram"),
    ("diff run.vram other.vram", "run.vram"),
    ("diff --before run.vram --after other.vram other.vram", "other.vram"),
    ("check run.vram", "run.vram"),
    ("check run.vram", "vram.toml"),
    ("check run.vram --baseline other.vram", "other.vram"),
    ("check run.vram --update", "run.vram"),
    ("view run.vram", "run.vram"),
    ("view run.vram other.vram", "other.vram"),
    ("export run.vram --to csv", "run.vram"),
    ("ranks run.vram other.vram", "other.vram"),
    ("ranks nccl_trace_rank_0.xz nccl_trace_rank_1.xz --json", "nccl_trace_rank_0.xz"),
    ("ranks job", "job/inner/rank1.nccl.pickle.xz"),
]


@pytest.mark.parametrize("link", [None, os.symlink, os.link], ids=["itself", "symlink", "link"])
@pytest.mark.parametrize(("command", "target"), WRITING)
def test_no_verb_overwrites_its_input(inputs, capsys, command, target, link):
    before = (inputs / target).read_bytes()
    output = target
    if link is not None:
        output = "answer"
        link(inputs / target, output)
    assert main([*command.split(), "-o", output]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert (
        found.err.splitlines()[-1]
        == f"vramlens: -o {output}: is the input file; choose another file"
    )
    assert (inputs / target).read_bytes() == before


@pytest.mark.parametrize("paths", ["nccl_trace_rank_0.xz nccl_trace_rank_1.xz", "job"])
def test_nor_does_the_page_of_a_comparison(inputs, capsys, paths):
    target = "nccl_trace_rank_0.xz" if paths != "job" else "job/inner/rank0.nccl.pickle.xz"
    before = (inputs / target).read_bytes()
    assert main(["ranks", *paths.split(), "--html", target]) == 2
    assert f"--html {target}: is the input file" in capsys.readouterr().err
    assert (inputs / target).read_bytes() == before


def test_an_earlier_answer_in_the_folder_of_a_job_is_overwritten(inputs):
    for output in ("job/answer.json", "job/answer.txt"):
        for _ in range(2):
            assert main(["ranks", "job", "--json", "-o", output]) == 0
            assert "collectives" in (inputs / output).read_text()


VERBS = ["explain", "leaks", "replay", "ranks", "view"]


@pytest.mark.parametrize("command", VERBS)
def test_an_earlier_answer_is_overwritten(inputs, command):
    for before in (b"an answer", b"", b'{"an": "answer"}', b"PK", b"\x80"):
        Path("answer").write_bytes(before)
        assert main([command, "run.vram", "-o", "answer"]) == 0
        assert len(Path("answer").read_bytes()) > 20
    assert (inputs / "run.vram").read_bytes() == GRAPHS.read_bytes()


def _kept() -> dict[str, bytes]:
    snapshot = pickle.dumps({"segments": [], "device_traces": []}, 4)
    vram(Path("whole"), snapshot)
    whole = Path("whole").read_bytes()
    return {
        "snapshot.pickle": snapshot,
        "snapshot.gz": gzip.compress(snapshot),
        "snapshot.xz": GRAPHS.read_bytes(),
        "whole.vram": whole,
        "cut_off.vram": whole[: len(whole) // 2],
    }


@pytest.mark.parametrize("command", VERBS)
def test_no_recording_is_overwritten_by_an_answer(inputs, capsys, command):
    for name, content in _kept().items():
        Path(name).write_bytes(content)
        assert main([command, "run.vram", "-o", name]) == 2
        assert capsys.readouterr().err.endswith(
            f"vramlens: -o {name}: is a recording, which this would overwrite; choose another file\n"
        )
        assert Path(name).read_bytes() == content


def test_nor_by_a_page(inputs, capsys):
    before = Path("other.vram").read_bytes()
    assert main(["ranks", "run.vram", "--html", "other.vram"]) == 2
    assert "--html other.vram: is a recording" in capsys.readouterr().err
    assert Path("other.vram").read_bytes() == before


def test_the_example_is_not_written_over_what_was_meant_as_the_input(inputs, capsys):
    before = Path("run.vram").read_bytes()
    assert main(["explain", "-o", "run.vram"]) == 2
    assert capsys.readouterr().err == (
        "vramlens: explain: -o run.vram is the output, and no FILE was given;"
        " did you mean: vramlens explain run.vram?\n"
    )
    assert Path("run.vram").read_bytes() == before
    assert main(["explain", "-o", "new.txt"]) == 2
    assert "vramlens explain FILE -o new.txt" in capsys.readouterr().err
    assert not Path("new.txt").exists()


def test_a_folder_that_is_not_there_is_named(inputs, capsys):
    assert main(["view", "run.vram", "-o", "nodir/x.html"]) == 3
    assert capsys.readouterr().err.endswith(
        "vramlens: nodir: no such folder; nothing was written\n"
    )


def test_a_page_of_a_comparison_is_told(inputs, capsys):
    assert main(["ranks", "job", "--html", "job.html"]) == 0
    assert "vramlens: job.html: " in capsys.readouterr().err


def test_a_lake_is_never_overwritten(inputs, capsys):
    pytest.importorskip("duckdb")
    assert main(["export", "run.vram", "other.vram", "--to", "lake/", "--run", "r"]) == 0
    inside = [path for path in Path("lake").rglob("*") if path.is_file()]
    assert inside
    before = [path.read_bytes() for path in inside]
    for path in inside:
        for question in ([], ["--sql", "select 1"]):
            assert main(["ranks", "lake/", *question, "-o", str(path)]) == 2
            assert "is the input file" in capsys.readouterr().err
    assert [path.read_bytes() for path in inside] == before
    assert main(["ranks", "lake/", "-o", "lake/answer.txt"]) == 0
    assert main(["ranks", "lake/", "-o", "lake/answer.txt"]) == 0
