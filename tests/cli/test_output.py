"""Where an answer goes: no verb writes it over what it was made from."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from recordings import DATA
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
    Path("error.log").write_text(json.loads(FAILED.with_suffix("").with_suffix(".json").read_text())["oom_message"])
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
    assert found.err.splitlines()[-1] == f"vramlens: -o {output}: is the input itself; name another file"
    assert (inputs / target).read_bytes() == before


@pytest.mark.parametrize("paths", ["nccl_trace_rank_0.xz nccl_trace_rank_1.xz", "job"])
def test_nor_does_the_page_of_a_comparison(inputs, capsys, paths):
    target = "nccl_trace_rank_0.xz" if paths != "job" else "job/inner/rank0.nccl.pickle.xz"
    before = (inputs / target).read_bytes()
    assert main(["ranks", *paths.split(), "--html", target]) == 2
    assert f"--html {target}: is the input itself" in capsys.readouterr().err
    assert (inputs / target).read_bytes() == before


def test_an_earlier_answer_in_the_folder_of_a_job_is_overwritten(inputs):
    for output in ("job/answer.json", "job/answer.txt"):
        for _ in range(2):
            assert main(["ranks", "job", "--json", "-o", output]) == 0
            assert "collectives" in (inputs / output).read_text()


@pytest.mark.parametrize("command", ["explain", "leaks", "replay", "ranks", "view"])
def test_what_is_no_input_is_overwritten(inputs, command):
    assert main([command, "run.vram", "-o", "other.vram"]) == 0
    assert (inputs / "other.vram").read_bytes() != GRAPHS.read_bytes()
    assert (inputs / "run.vram").read_bytes() == GRAPHS.read_bytes()


def test_a_lake_is_never_overwritten(inputs, capsys):
    pytest.importorskip("duckdb")
    assert main(["export", "run.vram", "other.vram", "--to", "lake/", "--run", "r"]) == 0
    inside = [path for path in Path("lake").rglob("*") if path.is_file()]
    assert inside
    before = [path.read_bytes() for path in inside]
    for path in inside:
        for question in ([], ["--sql", "select 1"]):
            assert main(["ranks", "lake/", *question, "-o", str(path)]) == 2
            assert "is the input itself" in capsys.readouterr().err
    assert [path.read_bytes() for path in inside] == before
    assert main(["ranks", "lake/", "-o", "lake/answer.txt"]) == 0
    assert main(["ranks", "lake/", "-o", "lake/answer.txt"]) == 0
