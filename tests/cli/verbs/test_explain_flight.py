"""``vramlens explain`` given flight records: told by looking, answered together."""

from __future__ import annotations

import json
import lzma
import pickle
import shutil
from pathlib import Path

import pytest

from support.recordings import DATA
from vramlens.cli.main import main
from vramlens.read.flight_record import is_flight_record

DESYNC = DATA / "ranks/desync"


def record(rank: int) -> bytes:
    return lzma.decompress((DESYNC / f"desync.rank{rank}.nccl.pickle.xz").read_bytes())


@pytest.fixture(params=["xz", "plain", "json"])
def flights(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    found = []
    for rank in (0, 1):
        if request.param == "xz":
            path = tmp_path / f"desync.rank{rank}.pickle.xz"
            shutil.copy(DESYNC / f"desync.rank{rank}.nccl.pickle.xz", path)
        else:
            path = tmp_path / f"nccl_trace_rank_{rank}"
            data = record(rank)
            path.write_bytes(
                data if request.param == "plain" else json.dumps(pickle.loads(data)).encode()
            )
        found.append(str(path))
    return found


def test_several_records_are_one_answer(
    flights: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *flights]) == 0
    out = capsys.readouterr().out
    assert (
        out.splitlines()[0]
        == "Ranks 0-1 called different collectives at call 6 of process group 0."
    )
    assert "train/multi.py:62" in out
    assert "train/multi.py:63" in out
    assert main(["ranks", *flights]) == 0
    assert capsys.readouterr().out == out


def test_one_record_tells_what_it_can(
    flights: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", flights[1]]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Rank 1: all 6 calls in the record completed; the last one is all_gather, number"
    )
    assert "train/multi.py:63" in out


def test_as_data_and_as_markdown(
    flights: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *flights, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "vramlens/1"
    assert [row["seq"] for row in found["collectives"]] == [6, 6]
    assert main(["explain", *flights, "--markdown", "-o", str(tmp_path / "x.md")]) == 0
    assert (tmp_path / "x.md").read_text().startswith("```\nRanks 0-1 called different collectives")


@pytest.mark.parametrize(
    "option", [("--by", "module"), ("--at", "peak"), ("--top", "3"), ("--total", "80GiB")]
)
def test_options_of_recordings(
    flights: list[str], option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *flights, *option]) == 2
    assert f"{option[0]} is only for recordings" in capsys.readouterr().err


def test_several_recordings_are_for_ranks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    paths = [str(DATA / f"ranks/ddp/ddp.rank{rank}.pickle.xz") for rank in (0, 1)]
    assert main(["explain", *paths]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"vramlens ranks {paths[0]} {paths[1]}" in error
    flight = str(DATA / "ranks/ddp/ddp.rank0.nccl.pickle.xz")
    assert main(["explain", flight, paths[0]]) == 2
    assert f"{paths[0]} is not a flight record" in capsys.readouterr().err
    assert main(["explain", flight, str(tmp_path / "no")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_what_is_no_flight_record() -> None:
    trace = b'{"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "pg_config": [{"pg_name": "0"}]}, "traceEvents": []'
    assert not is_flight_record(trace)
    frames = [
        {"name": name, "filename": "x.py", "line": 1}
        for name in ("_get_pg_config", "entries_of", "versions")
    ]
    assert not is_flight_record(pickle.dumps({"segments": [], "device_traces": [frames]}))
    assert not is_flight_record(pickle.dumps({"frames": frames}))
    for path in (DATA / "ranks").rglob("*.xz"):
        head = lzma.decompress(path.read_bytes())[:65536]
        assert is_flight_record(head) == (".nccl." in path.name)


def test_a_hostile_record_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(b"\x80\x02}X\x09\x00\x00\x00pg_configcos\nsystem\nX\x02\x00\x00\x00id\x85Rs.")
    assert main(["explain", str(path)]) == 3
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
