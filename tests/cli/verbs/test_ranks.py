"""``vramlens ranks`` as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.recordings import DATA, data_of
from vramlens.cli.main import main

RANKS = DATA / "ranks"


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["ranks", *arguments]) == 0
    found = capsys.readouterr()
    assert found.err == ""
    return found.out


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("ddp", "No difference worth acting on: 2 ranks, both peak at 1.96 GiB."),
        (
            "wrong_device",
            "Rank 1 uses memory on another rank's GPU: 258.00 MiB on GPU 0.",
        ),
        ("desync", "Ranks 0-1 called different collectives at call 6 of process group 0."),
    ],
)
def test_the_first_line_is_the_answer(
    name: str, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(capsys, str(RANKS / name)).splitlines()[0] == first


def test_a_memory_on_anothers_gpu_is_told_and_the_command_has_its_own_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = answer(capsys, str(RANKS / "wrong_device")).splitlines()
    assert "  rank 1, whose GPU is 1, also holds 258.00 MiB on GPU 0" in lines
    assert lines[-2] == "Next, see what uses the memory of rank 1:"
    assert lines[-1].startswith("  vramlens explain ")
    assert lines[-1].endswith(".pickle.xz")


def test_json_is_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(answer(capsys, str(RANKS / "rank0_gather"), "--json"))
    assert found["schema"] == "vramlens/1"
    assert {"ranks", "missing", "differences", "collectives", "findings"} <= found.keys()
    assert [row["rank"] for row in found["ranks"]] == [0, 1]
    (one,) = found["differences"]
    assert (one["ranks"], one["cause"], one["file"], one["line"]) == (
        [0],
        "rank0_gather",
        "train/multi.py",
        39,
    )
    assert one["fix"]
    assert one["verdict"] in ("proven", "likely")


def test_snapshots_without_flight_records(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(path) for path in sorted((RANKS / "leak_rank1").glob("*rank?.pickle.xz"))]
    out = answer(capsys, *paths)
    assert "train/multi.py:46" in out.splitlines()[0] + out.splitlines()[1]
    assert "Fix:" in out


def test_what_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["ranks", str(tmp_path / "nowhere")]) == 3
    assert "no such file" in capsys.readouterr().err


def test_a_file_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert answer(capsys, str(RANKS / "ddp"), "-o", str(tmp_path / "x.txt")) == ""
    assert (tmp_path / "x.txt").read_text().startswith("No difference worth acting on")


@pytest.mark.parametrize(
    ("name", "code"), [("ddp", 0), ("leak_rank1", 1), ("desync", 1), ("oom_one", 1)]
)
def test_fail_tells_a_job_with_trouble_by_the_exit_code(
    name: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ranks", str(RANKS / name), "--fail"]) == code
    assert main(["ranks", str(RANKS / name)]) == 0
    capsys.readouterr()


def test_fail_is_not_for_queries(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranks", "lake", "--fail", "--ask", "worst-lines"]) == 2
    assert "--fail is about a comparison" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rest_of_rank_0", "reason"),
    [
        (None, "rank 0 left no files that can be read"),
        (0.0, "rank 0 left no files that can be read"),
        (0.9, "the recording of rank 0 ends early"),
    ],
)
def test_fail_passes_no_rank_that_it_cannot_judge(
    rest_of_rank_0: float | None,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for rank in range(2):
        data = data_of(f"ranks/ddp/ddp.rank{rank}")
        rest = 1.0 if rank else rest_of_rank_0
        if rest is not None:
            (tmp_path / f"rank{rank}.pickle").write_bytes(data[: int(rest * len(data))])
    assert main(["ranks", str(tmp_path), "--fail"]) == 1
    said = f"vramlens: cannot tell whether all ranks are well: {reason}\n"
    assert capsys.readouterr().err == said
    assert main(["ranks", str(tmp_path)]) == 0


def test_recordings_of_no_job_have_names_that_tell_them_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder = tmp_path / "recordings-of-an-experiment"
    folder.mkdir()
    long = "an-experiment-with-a-name-that-is-longer-than-a-column"
    for name, ending in (("oom_leak", "a"), ("gpt_annotated", "b")):
        (folder / f"{long}-{ending}.pickle").write_bytes(data_of(f"recordings/{name}"))
    assert main(["ranks", str(folder)]) == 0
    text = capsys.readouterr().out
    names = [line.split()[-1] for line in text.splitlines() if "iB  " in line]
    assert len(names) == 2
    assert all(name.startswith("an-exp") for name in names)
    assert {name[-9:] for name in names} == {"-a.pickle", "-b.pickle"}
